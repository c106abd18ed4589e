-- What owners do: renew, and write beside their lease.

-- name: refused_fences
-- Those that do not stand or have run out, most often none. The version may be left open.
with given (id, version, epoch, claim) as (values (?, ?, ?, ?))
select g.id, g.epoch, g.claim
from given as g
left join lease as l on l.id = g.id and l.epoch = g.epoch and l.claim = g.claim
    and (g.version is null or l.version = g.version) and l.expires_at > ?
where l.id is null

-- name: renewed_leases
-- The version stays: a renewal only extends a lease, and no decision depends on it.
update lease set expires_at = max(expires_at, ?), renewed_at = ? where id in (?)

-- name: recorded_renewals
-- The events (7) of renewals that ask for one; Postgres writes them with the renewal.
insert or fail into event (id, at, kind, epoch, attempt, worker, detail)
select id, renewed_at, 7, epoch, attempt, worker, null from lease where id in (?)

-- name: later_leases
-- Those that would have been shortened.
select id, expires_at from lease where expires_at > ? and id in (?)

-- name: new_progress
insert into progress (id, percent, message, state_value, at, attempt)
select g.id, g.percent, g.message, g.state_value, g.at, l.attempt
from (select ? as id, ? as percent, ? as message, ? as state_value, ? as at) as g
cross join lease as l on l.id = g.id
where true
on conflict (id, attempt) do update set
    percent = coalesce(excluded.percent, percent),
    message = coalesce(excluded.message, message),
    state_value = coalesce(excluded.state_value, state_value),
    at = excluded.at
