-- name: routes_after
select number, namespace, lane, kind, capabilities from route
where number > :number order by number

-- name: new_route
insert into route (namespace, lane, kind, capabilities)
values (:namespace, :lane, :kind, :capabilities)

-- name: workers_after
select number, id, instance from worker where number > :number order by number

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

-- name: dropped_duty
delete from duty where name = :name and holder = :holder

-- name: new_secret
insert into meta (key, value) values ('secret', :value) on conflict do nothing

-- name: secret
select value from meta where key = 'secret'
