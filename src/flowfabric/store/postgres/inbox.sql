-- Submissions made in the application's own transactions, and endings made there.

-- name: database_identity
-- Names this database by its number and that of the inbox table, NULL where there is none.
-- Catalogs only: the role of an application may not read our tables.
select
    cast(d.oid as bigint), cast(cast(to_regclass('{schema}.submission_inbox') as oid) as bigint), d.datname
from pg_database d where d.datname = current_database()

-- name: arrived
-- Runs on the application's connection.
select run_id, run_lane from {schema}.put_in_inbox(
    cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text), cast($5 as text),
    cast($6 as text), cast($7 as bigint), cast($8 as bytea), cast($9 as bytea)
)

-- name: inbox_among
select id, at, kind, namespace, lane, options, payload
from {schema}.submission_inbox where id = any($1::uuid[])

-- name: admitted_inbox
-- Locks the entries that still exist; a second caller gets none of them.
delete from {schema}.submission_inbox where id = any($1::uuid[]) returning id

-- name: completed_here
-- Runs on the application's connection: the lease row goes if the fence stands, or nothing happens.
with ended as (
    delete from {schema}.lease
    where id = cast($1 as uuid) and epoch = cast($2 as integer) and claim = cast($3 as uuid)
        and version = cast($4 as integer) and expires_at > cast($5 as bigint)
    returning *
),
gone as (
    delete from {schema}.deadline where id in (select ended.id from ended)
),
written as (
    insert into {schema}.done (
        id, version, epoch, rank, flags, attempt, start, life,
        outcome, ended_at, claim, worker, started_at, result, trim_at
    )
    select
        e.id, e.version + 1, e.epoch, e.rank, e.flags, e.attempt, e.start, e.life,
        0, cast($5 as bigint), e.claim, e.worker, e.started_at, cast($6 as bytea), cast($7 as bigint)
    from ended e
),
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select cast($8 as uuid), e.id, e.version + 1, 1, 0, false
    from ended e where cast($8 as uuid) is not null
),
awaited as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select r.id, e.id, e.version + 1, 8, 0, false
    from ended e cross join unnest(cast($9 as uuid[])) as r (id)
),
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker)
    select e.id, cast($5 as bigint), 10, e.epoch, e.attempt, e.worker from ended e
)
select count(*) from ended
