-- Events, read so that none is skipped.

-- name: event_writers
-- The last number drawn and, read after it, the writers that may have drawn one and not committed
-- yet: every writer holds this lock before it draws. Without writers if the number is still $1.
select s.last, w.writers
from (
    select case when is_called then last_value else 0 end as last from {schema}.event_seq_seq
    offset 0
) s
cross join lateral (
    select array_agg(l.virtualtransaction) as writers
    from pg_locks l
    where s.last <> $1 and l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
        and l.relation = '{schema}.event'::regclass
        and l.database = (select oid from pg_database where datname = current_database())
) w

-- name: open_writers
-- Those of the given transactions that have not ended.
select count(*) from pg_locks l
where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
    and l.relation = '{schema}.event'::regclass
    and l.virtualtransaction = any($1::text[])

-- part: wanted_events
-- Those of the filter, by number.
    and ($3::smallint[] is null or v.kind = any($3))
    and (
        $4::text is null
        or coalesce(
            nullif(v.namespace, ''), (select r.namespace from {schema}.route r where r.number = e.route)
        ) = $4
    )
    and (
        $5::text is null
        or (select t.value from {schema}.tag t where t.id = v.id and t.key = $5) = $6::text
    )
order by v.seq
limit $7

-- name: events_after
-- Those of the worker registry have no execution but a namespace of their own.
select
    v.seq, v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail, e.route, e.flow, v.namespace
from {schema}.event v left join {schema}.execution e on e.id = v.id
where v.seq > $1 and v.seq <= $2 and (e.id is not null or v.namespace <> '')
    -- include: wanted_events

-- name: events_of
-- Of one execution.
select
    v.seq, v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail, e.route, e.flow, v.namespace
from {schema}.event v join {schema}.execution e on e.id = v.id
where v.id = $8 and v.seq > $1 and v.seq <= $2
    -- include: wanted_events

-- name: forgotten_event
select seq from {schema}.forgotten
