-- Written for one row and widened to many by the store: `values (?, …)` and `in (?)`.

-- name: new_ready
insert or fail into ready (
    id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: new_lease
insert or fail into lease (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: new_parked
insert or fail into parked (
    id, version, epoch, rank, flags, attempt, start, life,
    timeout, gate, due_at, since, note, queue
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: new_done
insert or fail into done (
    id, version, epoch, rank, flags, attempt, start, life,
    outcome, ended_at, pending, claim, worker, started_at, result, trim_at
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: new_deadlines
insert into deadline (id, at) values (?, ?)
on conflict (id) do update set at = excluded.at

-- name: gone_deadlines
delete from deadline where id in (?)

-- name: new_attempts
insert into attempt (id, "index", doc) values (?, ?, ?)
on conflict (id, "index") do update set doc = excluded.doc

-- name: new_steps
-- What was recorded first stays.
insert into step (id, generation, name, occurrence, position, doc) values (?, ?, ?, ?, ?, ?)
on conflict (id, generation, name, occurrence) do nothing

-- name: gone_steps
delete from step where id = ? and generation = ? and name = ? and occurrence = ?

-- name: new_events
insert or fail into event (id, at, kind, epoch, attempt, worker, detail)
values (?, ?, ?, ?, ?, ?, ?)

-- name: moved_ready
-- Those whose version does not stand, most often none.
with given (id, version) as (values (?, ?))
select g.id from given as g
left join ready as s on s.id = g.id and s.version = g.version
where s.id is null

-- name: moved_lease
-- A renewal moves only the expiry.
with given (id, version, expires_at) as (values (?, ?, ?))
select g.id from given as g
left join lease as s on s.id = g.id and s.version = g.version and s.expires_at = g.expires_at
where s.id is null

-- name: moved_parked
with given (id, version) as (values (?, ?))
select g.id from given as g
left join parked as s on s.id = g.id and s.version = g.version
where s.id is null

-- name: moved_done
with given (id, version) as (values (?, ?))
select g.id from given as g
left join done as s on s.id = g.id and s.version = g.version
where s.id is null

-- name: gone_ready
delete from ready where id in (?)

-- name: gone_lease
delete from lease where id in (?)

-- name: gone_parked
delete from parked where id in (?)

-- name: gone_done
delete from done where id in (?)
