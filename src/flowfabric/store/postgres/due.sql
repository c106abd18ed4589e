-- What time has made due. Asked on a connection whose plans are free: leases that ran out are
-- found by looking at all of them, on purpose.

-- part: swept
-- Whether the sweep looks after the execution of `d`: of namespace $1, with the tag $2 of value $3.
and (
    $1::text is null
    or $1 = (
        select r.namespace from {schema}.execution x join {schema}.route r on r.number = x.route
        where x.id = d.id
    )
)
and (
    $2::text is null
    or $3::text = (select t.value from {schema}.tag t where t.id = d.id and t.key = $2)
)

-- name: due_executions
-- Each branch reads at most `limit` rows, so a flood of one kind does not hide the others. A row
-- that an open transaction takes away (the application's own, that ends a run) is left out: the
-- sweep, and everything decided with it, would wait until that transaction ends.
with late as materialized (
    select d.id, d.at from {schema}.deadline d
    where d.at <= $4
    -- include: swept
    order by d.at limit $5 for key share of d skip locked
), parked as materialized (
    select d.id, d.due_at as at from {schema}.parked d
    where d.due_at <= $4
    -- include: swept
    order by d.due_at limit $5 for key share of d skip locked
), leased as materialized (
    select d.id, least(d.expires_at, d.times_out_at) as at from {schema}.lease d
    where $6::boolean and (d.expires_at <= $4 or d.times_out_at <= $4)
    -- include: swept
    order by at limit $5 for key share of d skip locked
)
select due.id
from (select * from late union all select * from parked union all select * from leased) due
group by due.id
order by min(due.at), due.id
limit $5

-- name: set_aside
-- Sets unreadable rows aside until $3: ready rows are hidden from all workers, and due moments become
-- due again then.
with held as (
    update {schema}.ready set held_until = $3, held_for = '' where id = any($1::uuid[])
),
later as (
    update {schema}.parked set due_at = $3 where id = any($1::uuid[]) and due_at is not null
),
late as (
    update {schema}.deadline set at = $3 where id = any($1::uuid[])
)
update {schema}.lease set
    expires_at = case when expires_at <= $2 then $3 else expires_at end,
    times_out_at = case when times_out_at <= $2 then $3 else times_out_at end
where id = any($1::uuid[])

-- name: trimmable_executions
-- Locked, so that a replay cannot take one away meanwhile. No members of flows: those go with their
-- flow.
select d.id from {schema}.done d
where ((d.ended_at <= $4 and d.trim_at is null) or (d.trim_at <= $5 and d.ended_at <= $7))
    and d.flags & 4 = 0
-- include: swept
limit $6
for update of d skip locked

-- name: trimmed_keys
-- The keys trimmed executions still hold; a key taken over by another execution stays.
delete from {schema}.dedup d
using {schema}.execution e join {schema}.route r on r.number = e.route
where e.id = any($1::uuid[]) and e.facts is not null
    and d.namespace = r.namespace
    and d.key = {schema}.readable_json(e.facts) ->> 'key'
    and d.id = e.id

-- name: shrunk_tables
select {schema}.shrink($1::text[], $2::bigint)

-- name: trimmed_tags
delete from {schema}.tag where id = any($1::uuid[])

-- name: trimmed_attempts
delete from {schema}.attempt where id = any($1::uuid[])

-- name: trimmed_steps
delete from {schema}.step where id = any($1::uuid[])

-- name: trimmed_progress
delete from {schema}.progress where id = any($1::uuid[])

-- name: trimmed_waitpoints
delete from {schema}.waitpoint where id = any($1::uuid[])

-- name: trimmed_signals
delete from {schema}.signal where id = any($1::uuid[])

-- name: trimmed_marks
delete from {schema}.dedup_record where id = any($1::uuid[])

-- name: trimmed_ledgers
delete from {schema}.ledger where execution = any($1::uuid[])

-- part: forgotten
-- Readers with an older cursor must learn that events are missing.
update {schema}.forgotten f set seq = g.seq
from (select max(seq) as seq from gone) g
where g.seq > f.seq

-- name: trimmed_events
with gone as (delete from {schema}.event where id = any($1::uuid[]) returning seq)
-- include: forgotten

-- name: trimmed_registry_events
with gone as (
    delete from {schema}.event where seq = any(array(
        select v.seq from {schema}.event v
        where v.id = '00000000-0000-0000-0000-000000000000' and v.at <= $1
        order by v.seq limit $2
    ))
    returning seq
)
-- include: forgotten

-- name: trimmed_done
delete from {schema}.done where id = any($1::uuid[])

-- name: trimmed_executions
delete from {schema}.execution where id = any($1::uuid[])

-- name: lapsed_keys
-- By an array, as `trimmed_charges` says.
delete from {schema}.dedup where ctid = any(array(
    select k.ctid from {schema}.dedup k where k.until <= $1
    order by k.until limit $2 for update skip locked
))
