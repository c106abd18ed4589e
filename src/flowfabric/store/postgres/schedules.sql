-- Schedules.

-- name: schedules
select name, doc from {schema}.schedule where name > $1 order by name limit $2

-- name: named_schedule
select name, doc from {schema}.schedule where name = $1

-- name: due_schedules
select name, doc from {schema}.schedule where next_at <= $1 order by next_at, name limit $2

-- name: next_schedule
select min(next_at) from {schema}.schedule where next_at is not null

-- name: new_schedule
insert into {schema}.schedule (name, version, next_at, doc) values ($1, $2, $3, $4)
on conflict (name) do nothing
returning name

-- name: changed_schedule
update {schema}.schedule set version = $2, next_at = $3, doc = $4
where name = $1 and version = $5
returning name

-- name: dropped_schedule
delete from {schema}.schedule where name = $1 returning name
