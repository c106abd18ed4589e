-- Creating executions.

-- name: new_executions
insert or fail into execution (id, created_at, route, policy, facts, flow, payload)
values (?, ?, ?, ?, ?, ?, ?)

-- name: known_executions
-- Of the given ids those that exist, with what their text is made of.
select id, route, flow from execution where id in (?)

-- name: live_key
-- The execution that holds a key whose window has not passed; one that has only arrived has no
-- route yet, but a lane.
select d.id, e.route, e.flow, a.lane
from dedup d
left join execution e on e.id = d.id
left join submission_inbox a on a.id = d.id
where d.namespace = :namespace and d.key = :key and d.until > :now
    and coalesce(e.id, a.id) is not null

-- name: new_keys
-- A key whose window has passed is taken over; a live one was looked for before.
insert into dedup (namespace, key, id, until) values (?, ?, ?, ?)
on conflict (namespace, key) do update set id = excluded.id, until = excluded.until

-- name: new_tags
insert into tag (id, key, value, at) values (?, ?, ?, ?)
on conflict (id, key) do update set value = excluded.value, at = excluded.at
