-- Schedules.

-- name: schedules
select name, doc from schedule where name > :after order by name limit :limit

-- name: named_schedule
select name, doc from schedule where name = :name

-- name: due_schedules
select name, doc from schedule where next_at <= :now order by next_at, name limit :limit

-- name: next_schedule
select min(next_at) from schedule where next_at is not null

-- name: new_schedule
insert into schedule (name, version, next_at, doc) values (:name, :version, :next_at, :doc)
on conflict (name) do nothing
returning name

-- name: changed_schedule
update schedule set version = :version, next_at = :next_at, doc = :doc
where name = :name and version = :expected
returning name

-- name: dropped_schedule
delete from schedule where name = :name returning name
