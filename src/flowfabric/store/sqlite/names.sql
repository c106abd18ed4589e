-- name: new_route
insert into route (namespace, lane, kind, capabilities)
values (:namespace, :lane, :kind, :capabilities)

-- name: new_worker
insert into worker (id, instance) values (:id, :instance)

-- name: duty_holder
-- Gives a row when the holder has the duty now. One that would last for more than a minute was taken
-- before the clock was set back.
insert into duty (name, holder, until) values (:name, :holder, :until)
on conflict (name) do update set holder = excluded.holder, until = excluded.until
where duty.holder = excluded.holder or duty.until <= :now
    or duty.until - 60000 > :now
returning holder

-- name: glance
-- Nothing but the first three is asked for by those who do not have the duty. Which lease ends first
-- only a look at all of them tells; without `:leases` there is none, and without `:ready` none at those.
with leases (end_at) as materialized (
    select min(min(expires_at, coalesce(times_out_at, expires_at))) from lease
    where :leases and :has_duty
)
select
    exists (select 1 from submission_inbox),
    :ready and exists (select 1 from ready where held_until <= :now),
    exists (select 1 from parked where gate = 2 and queue is not null),
    :has_duty and (
        exists (select 1 from deadline where at <= :now)
        or exists (select 1 from parked where due_at <= :now)
        or coalesce(leases.end_at <= :now, 0)
        or exists (select 1 from schedule where next_at <= :now)
        or exists (select 1 from budget where next_reset_at <= :now)
        or exists (select 1 from flow_outbox)
        or exists (select 1 from reservation)
        or exists (select 1 from presence where expires_at = :forever)
    ),
    :has_duty and exists (select 1 from parked where queue > -1),
    case when :has_duty then (
        select min(at) from (
            select min(at) as at from deadline where at > :now
            union all
            select min(due_at) from parked where due_at > :now
            union all
            select leases.end_at where leases.end_at > :now
            union all
            select min(next_at) from schedule where next_at > :now
            union all
            select min(next_reset_at) from budget where next_reset_at > :now
        )
    ) end,
    leases.end_at
from leases

-- name: own_tables
select name from sqlite_master where type = 'table' and name in ('execution', 'meta')

-- name: schema_version
select cast(cast(value as text) as integer) from meta where key = 'version'

-- name: new_version
insert into meta (key, value) values ('version', :value)
on conflict (key) do update set value = excluded.value

-- name: new_clock_correction
insert into meta (key, value) values ('clock', :value)
on conflict (key) do update set value = excluded.value where meta.value is :expected
returning key
