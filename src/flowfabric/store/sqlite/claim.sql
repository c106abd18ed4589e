-- name: waiting_routes
-- Of the given routes those with something to take, and the rank and id of the best of it.
select r.route, r.rank, r.id
from json_each(:routes) as wanted
cross join ready as r on r.id = (
    select best.id from ready as best
    where best.route = wanted.value
        and (best.held_until <= :now or best.held_for in (select value from json_each(:workers)))
        and (:suspects or best.flags & 64 = 0)
    order by best.rank, best.id
    limit 1
)
order by r.rank, r.id
limit :limit

-- name: claimable_executions
-- The best of one route, in claim order, and whether each is held for one of the workers. Read row
-- by row: only what is taken is read.
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow, e.payload,
    r.rank, r.version, r.epoch, r.flags, r.attempt, r.start, r.life, r.timeout,
    r.held_until > :now
from ready as r
cross join execution as e on e.id = r.id
where r.route = :route and (r.held_until <= :now or r.held_for in (select value from json_each(:workers)))
    and (:suspects or r.flags & 64 = 0)
order by r.rank, r.id
limit :limit

-- name: begun_executions
-- As claimable_executions, of a lane that drains: what has not begun is left alone.
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow, e.payload,
    r.rank, r.version, r.epoch, r.flags, r.attempt, r.start, r.life, r.timeout,
    r.held_until > :now
from ready as r indexed by ready_begun
cross join execution as e on e.id = r.id
where r.route = :route and r.start <> 0 and r.start <> 2
    and (r.held_until <= :now or r.held_for in (select value from json_each(:workers)))
    and (:suspects or r.flags & 64 = 0)
order by r.rank, r.id
limit :limit

-- name: suspect_executions
-- As claimable_executions, only those that may have ended their worker. All of them have begun.
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow, e.payload,
    r.rank, r.version, r.epoch, r.flags, r.attempt, r.start, r.life, r.timeout,
    r.held_until > :now
from ready as r indexed by ready_suspect
cross join execution as e on e.id = r.id
where r.route = :route and r.flags & 64 <> 0
    and (r.held_until <= :now or r.held_for in (select value from json_each(:workers)))
order by r.rank, r.id
limit :limit

-- name: any_suspect
select 1 from ready indexed by ready_suspect where flags & 64 <> 0 limit 1

-- name: claimed_payloads
-- Of what a call with this id took.
select l.id, e.payload
from lease as l cross join execution as e on e.id = l.id
where l.claim = ? and l.id in (?)

-- name: leases_by_route
-- How many run of these routes. Leases are few: all are looked at.
select route, count(*) from lease
where route in (select value from json_each(:routes))
group by route

-- name: set_aside_ready
-- Hidden from all workers until a moment: no worker has an empty name.
update ready set held_until = ?, held_for = '' where id in (?)

-- name: taken_leases
insert or fail into lease (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue
)
select
    id, version + 1, epoch + (flags & 128 = 0), rank, flags, attempt, start, life,
    ?, ?, ?, ?, ? + timeout, null, route, queue
from ready where id in (?)

-- name: shared_leases
-- The same for several calls: each row has its own claim and worker.
with given (id, claim, worker, at, until) as (values (?, ?, ?, ?, ?))
insert or fail into lease (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue
)
select
    r.id, r.version + 1, r.epoch + (r.flags & 128 = 0), r.rank, r.flags, r.attempt, r.start, r.life,
    g.claim, g.worker, g.at, g.until, g.at + r.timeout, null, r.route, r.queue
from given as g
cross join ready as r on r.id = g.id

-- name: taken_events
-- claimed, or resumed (continue), or reclaimed; what is spent is taken to be given up
insert or fail into event (id, at, kind, epoch, attempt, worker, detail)
select
    id, started_at, case start when 4 then 2 when 3 then 3 else 1 end,
    epoch, attempt, worker, null
from lease where flags & 128 = 0 and id in (?)

-- name: leases_by_claim
-- What an earlier call with this id took and still holds.
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow, e.payload,
    l.rank, l.version, l.epoch, l.flags, l.attempt, l.start, l.life,
    l.started_at, l.expires_at, l.times_out_at, l.renewed_at
from lease as l
cross join execution as e on e.id = l.id
where l.claim = :claim and l.expires_at > :now
order by l.rank, l.id

-- name: limited_lanes
-- Those a claim must not take freely from, most often none.
select name, state, concurrency from lane where state <> 0 or concurrency is not null
