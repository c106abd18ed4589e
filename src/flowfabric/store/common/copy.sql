-- Whole tables, read in the order of their keys. What stands in braces is filled in per table.

-- name: all_rows
select {columns} from {table} order by {key}

-- name: rows_after
select {columns} from {table} where ({key}) > ({marks}) order by {key}

-- name: row_count
select count(*) from {table}

-- name: any_row
select 1 from {table} limit 1

-- name: emptied_table
delete from {table}

-- name: kept_version
delete from {schema}.meta where key <> 'version'

-- name: promotion
select value from {schema}.meta where key = 'promotion'

-- name: new_promotion
insert into {schema}.meta (key, value) values ('promotion', $1)
on conflict (key) do update set value = excluded.value

-- name: live_leases
-- How many leases have not expired, and when the last of them does.
select count(*), max(expires_at) from {schema}.lease where expires_at > $1

-- name: live_workers
select instance from {schema}.presence where expires_at > $1 order by instance limit 5

-- name: live_duties
select max(until) from {schema}.duty where until > $1
