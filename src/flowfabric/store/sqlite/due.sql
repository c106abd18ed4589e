-- part: swept
-- Whether the sweep looks after the execution of `d`.
and (
    :namespace is null
    or :namespace = (
        select r.namespace from execution as x join route as r on r.number = x.route where x.id = d.id
    )
)
and (
    :tag_key is null
    or exists (select 1 from tag where id = d.id and key = :tag_key and value = :tag_value)
)

-- name: due_executions
-- Each branch reads at most `:limit` rows, so a flood of one kind does not hide the others.
select id from (
    select id from (
        select d.id from deadline as d where d.at <= :now
        -- include: swept
        order by d.at limit :limit
    )
    union
    select id from (
        select d.id from parked as d where d.due_at <= :now
        -- include: swept
        order by d.due_at limit :limit
    )
    union
    select id from (
        select d.id from lease as d where :leases and (d.expires_at <= :now or d.times_out_at <= :now)
        -- include: swept
        order by min(d.expires_at, coalesce(d.times_out_at, d.expires_at))
        limit :limit
    )
)
limit :limit

-- name: set_aside_parked
update parked set due_at = ? where due_at is not null and id in (?)

-- name: set_aside_deadlines
update deadline set at = ? where id in (?)

-- name: set_aside_leases
-- Those that are due; the owner of one that is not goes on.
update lease set
    expires_at = iif(expires_at <= ?1, ?2, expires_at),
    times_out_at = iif(times_out_at <= ?1, ?2, times_out_at)
where id in (?)

-- name: trimmable_executions
-- No members of flows: those go with their flow. The index is named: where statistics say that most
-- rows have succeeded, all of them would be read.
select id from (
    select d.id from done as d indexed by done_ended_at
    where d.outcome in (0, 1, 2, 3, 4) and d.ended_at <= :ended_before and d.trim_at is null
        and not d.flags & 4
    -- include: swept
    limit :limit
)
union
select id from (
    select d.id from done as d indexed by done_trim_at
    where d.trim_at <= :now and d.ended_at <= :unread_from and not d.flags & 4
    -- include: swept
    limit :limit
)
limit :limit

-- name: held_keys
select
    r.namespace,
    case when json_valid(cast(e.facts as text)) then json_extract(cast(e.facts as text), '$.key') end,
    e.id
from execution as e join route as r on r.number = e.route
where e.facts is not null and e.id in (?)

-- name: trimmed_keys
-- A key that another execution has taken over stays.
delete from dedup where namespace = ? and key = ? and id = ?

-- name: lapsed_keys
delete from dedup where (namespace, key) in (
    select namespace, key from dedup where until <= :now order by until limit :limit
)

-- name: trimmed_executions
delete from execution where id in (?)

-- name: trimmed_attempts
delete from attempt where id in (?)

-- name: trimmed_steps
delete from step where id in (?)

-- name: trimmed_waitpoints
delete from waitpoint where id in (?)

-- name: trimmed_signals
delete from signal where id in (?)

-- name: trimmed_marks
delete from dedup_record where id in (?)

-- name: newly_forgotten
select max(seq) from event where id in (?)

-- name: old_registry_events
select seq from event where id = zeroblob(16) and at <= :ended_before order by seq limit :limit

-- name: trimmed_registry_events
delete from event where seq = ?

-- name: forgotten
-- Readers with an older cursor must learn that events are missing.
update forgotten set seq = max(seq, coalesce(?, 0))

-- name: trimmed_events
delete from event where id in (?)

-- name: trimmed_tags
delete from tag where id in (?)

-- name: trimmed_progress
delete from progress where id in (?)

-- name: trimmed_ledgers
delete from ledger where execution in (?)
