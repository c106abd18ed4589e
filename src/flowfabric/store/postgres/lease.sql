-- What owners do: renew, end, write beside their lease.

-- name: renewed_leases
-- The version stays: a renewal only extends a lease, and no decision depends on it.
update {schema}.lease l
set expires_at = greatest(l.expires_at, $5::bigint + g.ttl), renewed_at = $5
from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bigint[]) as g (id, claim, epoch, ttl)
where l.id = g.id and l.claim = g.claim and l.epoch = g.epoch and l.expires_at > $5
returning l.id, l.expires_at

-- name: ended_leases
-- A life of NULL keeps the one of the lease, an empty one clears it. The one event an ending
-- usually has tells of the lease itself and rides with it; where it is otherwise, `kind` is NULL
-- and the events follow by themselves.
with ended as (
    delete from {schema}.lease l
    using unnest(
        $1::uuid[], $2::integer[], $3::integer[], $4::uuid[], $5::integer[], $6::bytea[],
        $7::smallint[], $8::bigint[], $9::bytea[], $10::bigint[], $11::smallint[], $12::bytea[]
    ) as g (
        id, version, epoch, claim, new_version, new_life, outcome, ended_at, result,
        event_at, kind, detail
    )
    where l.id = g.id and l.version = g.version and l.epoch = g.epoch and l.claim = g.claim
        and l.expires_at > $13
    returning
        l.id, g.new_version, l.epoch, l.rank, l.flags, l.attempt, l.start, l.life, g.new_life,
        g.outcome, g.ended_at, l.claim, l.worker, l.started_at, g.result,
        g.event_at, g.kind, g.detail
),
settled as (
    insert into {schema}.done (
        id, version, epoch, rank, flags, attempt, start, life,
        outcome, ended_at, claim, worker, started_at, result
    )
    select
        e.id, e.new_version, e.epoch, e.rank, e.flags, e.attempt, e.start,
        case when e.new_life is null then e.life else nullif(e.new_life, ''::bytea) end,
        e.outcome, e.ended_at, e.claim, e.worker, e.started_at, e.result
    from ended e
),
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select e.id, e.event_at, e.kind, e.epoch, e.attempt, e.worker, e.detail
    from ended e where e.kind is not null
),
told_more as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from unnest(
        $14::uuid[], $15::bigint[], $16::smallint[], $17::integer[], $18::integer[],
        $19::integer[], $20::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select ended.id from ended)) is true
),
owed as (
    insert into {schema}.chore (flow, id, number, kind, outcome, spared)
    select c.flow, c.id, c.number, c.kind, c.outcome, c.spared
    from unnest(
        $21::uuid[], $22::uuid[], $23::integer[], $24::smallint[], $25::smallint[], $26::boolean[]
    ) as c (flow, id, number, kind, outcome, spared)
    where (c.id in (select ended.id from ended)) is true
)
select ended.id from ended

-- name: progress_writes
-- The lease is locked against being ended or lost, not against being renewed.
with held as (
    select
        l.id, l.attempt, g.percent, g.message, g.state_value,
        g.generation, g.name, g.occurrence, g.position, g.doc
    from unnest(
        $1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::text[],
        $6::bytea[], $7::integer[], $8::text[], $9::integer[], $10::integer[], $11::bytea[]
    ) as g (
        id, claim, epoch, percent, message, state_value, generation, name, occurrence, position, doc
    )
    join {schema}.lease l
        on l.id = g.id and l.claim = g.claim and l.epoch = g.epoch and l.expires_at > $12
    for key share of l
),
recorded as (
    insert into {schema}.step (id, generation, name, occurrence, position, doc)
    select h.id, h.generation, h.name, h.occurrence, h.position, h.doc
    from held h where h.name is not null
    on conflict (id, generation, name, occurrence) do nothing
),
reported as (
    insert into {schema}.progress (id, attempt, percent, message, state_value, at)
    select h.id, h.attempt, h.percent, h.message, h.state_value, $12
    from held h
    where h.percent is not null or h.message is not null or h.state_value is not null
    on conflict (id) do update set
        attempt = excluded.attempt,
        percent = case when progress.attempt = excluded.attempt
            then coalesce(excluded.percent, progress.percent) else excluded.percent end,
        message = case when progress.attempt = excluded.attempt
            then coalesce(excluded.message, progress.message) else excluded.message end,
        state_value = coalesce(excluded.state_value, progress.state_value),
        at = excluded.at
)
select distinct held.id from held
