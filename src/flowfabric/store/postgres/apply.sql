-- The general way to write: lock, compare, move.

-- name: state_versions
-- Locks the named rows, table by table in one order, ids ascending.
with r as (
    select id, version from {schema}.ready where id = any($1::uuid[]) order by id for update
), l as (
    select id, version, expires_at from {schema}.lease where id = any($2::uuid[])
    order by id for update
), p as (
    select id, version from {schema}.parked where id = any($3::uuid[]) order by id for update
), d as (
    select id, version from {schema}.done where id = any($4::uuid[]) order by id for update
)
select id, version, null::bigint from r
union all select id, version, expires_at from l
union all select id, version, null from p
union all select id, version, null from d

-- name: gone_ready
-- Their versions were compared when they were locked. A join could be planned, while the table is
-- empty, so that it reads all of it later.
delete from {schema}.ready where id = any($1::uuid[]) returning id

-- name: gone_lease
delete from {schema}.lease where id = any($1::uuid[]) returning id

-- name: gone_parked
delete from {schema}.parked where id = any($1::uuid[]) returning id

-- name: gone_done
delete from {schema}.done where id = any($1::uuid[]) returning id

-- name: new_ready
insert into {schema}.ready (
    id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
)
select * from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
    $7::smallint[], $8::bytea[],
    $9::integer[], $10::bigint[], $11::bigint[], $12::text[], $13::smallint[], $14::bigint[]
)

-- name: new_lease
insert into {schema}.lease (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue
)
select * from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
    $7::smallint[], $8::bytea[],
    $9::uuid[], $10::integer[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::integer[], $16::bigint[]
)

-- name: changed_lease
-- In place, so that a concurrent write of steps or progress still finds the lease.
update {schema}.lease t
set version = g.version, epoch = g.epoch, rank = g.rank, flags = g.flags, attempt = g.attempt,
    start = g.start, life = g.life, claim = g.claim, worker = g.worker, started_at = g.started_at,
    expires_at = g.expires_at, times_out_at = g.times_out_at, renewed_at = g.renewed_at,
    route = g.route, queue = g.queue
from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
    $7::smallint[], $8::bytea[],
    $9::uuid[], $10::integer[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::integer[], $16::bigint[], $17::integer[]
) as g (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue, old_version
)
where t.id = g.id and t.version = g.old_version
returning t.id

-- name: new_parked
insert into {schema}.parked (
    id, version, epoch, rank, flags, attempt, start, life,
    timeout, gate, due_at, since, note, queue
)
select * from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
    $7::smallint[], $8::bytea[],
    $9::bigint[], $10::smallint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::bigint[]
)

-- name: new_done
insert into {schema}.done (
    id, version, epoch, rank, flags, attempt, start, life,
    outcome, ended_at, pending, claim, worker, started_at, result, trim_at
)
select * from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
    $7::smallint[], $8::bytea[],
    $9::smallint[], $10::bigint[], $11::smallint[], $12::uuid[], $13::integer[], $14::bigint[],
    $15::bytea[], $16::bigint[]
)

-- name: new_attempts
insert into {schema}.attempt (id, index, doc)
select * from unnest($1::uuid[], $2::integer[], $3::bytea[])
on conflict (id, index) do update set doc = excluded.doc

-- name: new_steps
-- What was recorded first stays.
insert into {schema}.step (id, generation, name, occurrence, position, doc)
select * from unnest(
    $1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::bytea[]
)
on conflict (id, generation, name, occurrence) do nothing

-- name: gone_steps
-- Like counted_signals: only the session that locks the execution's state row, which is not leased,
-- writes its steps.
delete from {schema}.step t
using (
    select f.ctid as place
    from unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[])
        as c (id, generation, name, occurrence)
    cross join lateral (
        select s.ctid from {schema}.step s
        where s.id = c.id and s.generation = c.generation and s.name = c.name
            and s.occurrence = c.occurrence
        offset 0
    ) f
) g
where t.ctid = g.place

-- name: new_events
insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
select * from unnest(
    $1::uuid[], $2::bigint[], $3::smallint[], $4::integer[], $5::integer[], $6::integer[],
    $7::bytea[]
)

-- name: new_waitpoints
insert into {schema}.waitpoint (id, waitpoint, attempt, doc)
select * from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bytea[])
on conflict (id, waitpoint) do nothing

-- name: new_signals
insert into {schema}.signal (id, number, waitpoint, suspension, doc)
select * from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::uuid[], $5::bytea[])

-- name: counted_signals
-- Looked up by key and then by place, so that no plan made while the table is empty reads all of
-- it later. Only the session that locks the execution's state row writes its signals, so they do
-- not move.
update {schema}.signal t set suspension = g.suspension
from (
    select f.ctid as place, c.suspension
    from unnest($1::uuid[], $2::integer[], $3::uuid[]) as c (id, number, suspension)
    cross join lateral (
        select s.ctid from {schema}.signal s where s.id = c.id and s.number = c.number offset 0
    ) f
) g
where t.ctid = g.place

-- name: new_dedup_records
insert into {schema}.dedup_record (id, key, until, doc)
select * from unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::bytea[])
on conflict (id, key) do update set until = excluded.until, doc = excluded.doc

-- name: settled_edges
-- Like counted_signals: only the session that locks the downstream's state row writes its edges.
update {schema}.edge t set outcome = g.outcome
from (
    select f.ctid as place, c.outcome
    from unnest($1::uuid[], $2::uuid[], $3::smallint[]) as c (flow, id, outcome)
    cross join lateral (
        select s.ctid from {schema}.edge s where s.flow = c.flow and s.id = c.id offset 0
    ) f
) g
where t.ctid = g.place

-- name: new_outbox
insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
select * from unnest(
    $1::uuid[], $2::uuid[], $3::integer[], $4::smallint[], $5::smallint[], $6::boolean[]
)
on conflict (flow, id, number, kind) do nothing

-- name: new_deadlines
insert into {schema}.deadline (id, at)
select * from unnest($1::uuid[], $2::bigint[])
on conflict (id) do update set at = excluded.at

-- name: gone_deadlines
delete from {schema}.deadline where id = any($1::uuid[])

-- name: ready_rows
-- A row as it was written, to recognise one's own after a lost reply.
select id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
from {schema}.ready where id = any($1::uuid[])

-- name: lease_rows
select id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue
from {schema}.lease where id = any($1::uuid[])

-- name: parked_rows
select id, version, epoch, rank, flags, attempt, start, life,
    timeout, gate, due_at, since, note, queue
from {schema}.parked where id = any($1::uuid[])

-- name: done_rows
select id, version, epoch, rank, flags, attempt, start, life,
    outcome, ended_at, pending, claim, worker, started_at, result, trim_at
from {schema}.done where id = any($1::uuid[])
