-- A Postgres schema as one side of a copy.

-- name: found_columns
select c.relname, a.attname
from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = to_regnamespace('{schema}') and c.relkind in ('r', 'p')
    and a.attnum > 0 and not a.attisdropped

-- name: quiet_tables
-- Other sessions read, and wait if they want to write.
lock table {table} in share mode

-- name: last_number
select coalesce(pg_sequence_last_value(cast(pg_get_serial_sequence($1, $2) as regclass)), 0)

-- name: later_number
select setval(pg_get_serial_sequence($1, $2), greatest($3::bigint, 1), $3::bigint > 0)

-- name: locked_promotion
select value from {schema}.meta where key = 'promotion' for update

-- name: analyzed
analyze {table}
