-- The schema itself, and what is held once per database.

-- name: has_schema
select to_regnamespace('{schema}') is not null

-- name: schema_lock
-- Held until the transaction ends: one process migrates, the others wait and find it done.
select pg_advisory_xact_lock(hashtextextended('flowfabric migrations of {schema}', 0))

-- name: new_schema
create schema {schema}

-- name: has_version
select to_regclass('{schema}.meta') is not null

-- name: schema_version
select cast(convert_from(value, 'UTF8') as integer) from {schema}.meta where key = 'version'

-- name: new_version
insert into {schema}.meta (key, value) values ('version', $1)
on conflict (key) do update set value = excluded.value

-- name: new_clock_correction
insert into {schema}.meta as m (key, value) values ('clock', $1)
on conflict (key) do update set value = excluded.value where m.value is not distinct from $2
returning key

-- name: glance
-- All that a process at rest must know; the first column says whether the holder has the duty now.
-- One that would last for more than a minute was taken before the clock was set back. Which lease
-- ends first only a look at all of them tells; without $6 there is none, and without $7 none at `ready`.
with held as (
    insert into {schema}.duty (name, holder, until) values ($1, $2, $4)
    on conflict (name) do update set holder = excluded.holder, until = excluded.until
    where duty.until <= $3 or duty.holder = excluded.holder
        or duty.until - 60000 > $3
    returning 1
),
mine as materialized (
    select count(*) > 0 as has_duty from held
),
leases as materialized (
    select min(least(l.expires_at, l.times_out_at)) as end_at from {schema}.lease l
    where $6::boolean and (select mine.has_duty from mine)
)
select
    mine.has_duty,
    exists (select from {schema}.submission_inbox),
    $7::boolean and exists (select from {schema}.ready r where r.held_until <= $3),
    exists (select from {schema}.parked p where p.gate = 2 and p.queue is not null),
    mine.has_duty and (
        exists (select from {schema}.deadline d where d.at <= $3)
        or exists (select from {schema}.parked p where p.due_at <= $3)
        or coalesce(leases.end_at <= $3, false)
        or exists (select from {schema}.schedule s where s.next_at <= $3)
        or exists (select from {schema}.budget b where b.next_reset_at <= $3)
        or exists (select from {schema}.flow_outbox)
        or exists (select from {schema}.reservation)
        or exists (select from {schema}.presence p where p.expires_at = $5)
    ),
    mine.has_duty and exists (select from {schema}.parked p where p.queue > -1),
    case when mine.has_duty then (
        select min(soon.at) from (
            select min(d.at) as at from {schema}.deadline d where d.at > $3
            union all
            select min(p.due_at) from {schema}.parked p where p.due_at > $3
            union all
            select leases.end_at where leases.end_at > $3
            union all
            select min(s.next_at) from {schema}.schedule s where s.next_at > $3
            union all
            select min(b.next_reset_at) from {schema}.budget b where b.next_reset_at > $3
        ) soon
    ) end,
    leases.end_at,
    (select value from {schema}.meta where key = 'clock'),
    cast(extract(epoch from clock_timestamp()) as double precision)
from mine, leases

-- name: hint
-- Through a pooler, the argument is put into the text. A hint may be lost: its commit does not wait
-- for the disk.
select
    set_config('synchronous_commit', 'off', true),
    nextval('{schema}.hint_seq'),
    pg_notify('{schema}_wake', $1)

-- name: news
-- Two rows for each hint since the one of this number, up to 500, and one if the inbox has entries.
-- The argument is put into the text.
select from {schema}.hint_seq s, generate_series(
    1,
    2 * least(500, case when s.is_called then s.last_value else 0 end - $1)
    + case when exists (select from {schema}.submission_inbox) then 1 else 0 end
)

-- name: newest_hint
select case when is_called then last_value else 0 end from {schema}.hint_seq

-- name: session
-- The process that serves this connection: a number that may be reused later, and since when.
-- Where the server can end long transactions by itself, it does.
select
    pid, backend_start,
    (select set_config(name, '20000', false) from pg_settings where name = 'transaction_timeout')
from pg_stat_activity where pid = pg_backend_pid()

-- name: unbounded
-- For migrations, which may have much to do.
select set_config(name, '0', true) from pg_settings
where name in ('transaction_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')

-- name: served_by
select pg_backend_pid()

-- name: ended_sessions
-- Ends what broken connections left running and waits for it: its statement has committed or never
-- will. Tells for each whether it was at work, and whether it has ended.
select a.state = 'active', pg_terminate_backend(a.pid, 3000)
from unnest($1::integer[], $2::timestamptz[]) as l (pid, since)
join pg_stat_activity a on a.pid = l.pid and a.backend_start = l.since

-- name: idle_sessions
-- Those that have had nothing to do for a second.
select a.pid from pg_stat_activity a
where a.pid = any($1::integer[]) and a.state <> 'active'
    and a.state_change < clock_timestamp() - interval '1 second'

-- name: moment
-- The store's clock follows it; at rest the glance brings it along.
select cast(extract(epoch from clock_timestamp()) as double precision)

-- name: schema_lines
-- The schema as text that reads the same on every version of the server.
select line from (
    select 1 as part, c.relname as owner, a.attnum as at, format(
        '%s %s.%s %s%s%s',
        case c.relkind when 'v' then 'view' else 'table' end,
        c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        case when a.attnotnull then ' not null' else '' end,
        case a.attidentity when 'a' then ' identity' else '' end
    ) as line
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = to_regnamespace('{schema}') and c.relkind in ('r', 'v')
        and a.attnum > 0 and not a.attisdropped
    union all
    select 2, c.relname, 0, format('table %s with (%s)', c.relname, array_to_string(c.reloptions, ', '))
    from pg_class c
    where c.relnamespace = to_regnamespace('{schema}') and c.relkind = 'r'
        and c.reloptions is not null
    union all
    select 3, r.relname, 0, format('constraint %s %s', n.conname, pg_get_constraintdef(n.oid))
    from pg_constraint n join pg_class r on r.oid = n.conrelid
    where n.connamespace = to_regnamespace('{schema}') and n.contype in ('c', 'f', 'p', 'u', 'x')
    union all
    select 4, i.tablename, 0, i.indexdef from pg_indexes i where i.schemaname = '{schema}'
) described
order by part, owner, at, line collate "C"
