-- Submissions made in the application's own transactions, and endings made there.

-- name: database_identity
-- The file behind a connection of the application, and whether it has an inbox table.
select d.file, (select count(*) from sqlite_master m where m.type = 'table' and m.name = 'submission_inbox')
from pragma_database_list d where d.name = 'main'

-- name: arrived_key
-- Runs on the application's connection: takes the key if it is free.
insert into dedup (namespace, key, id, until) values (:namespace, :key, :id, :until)
on conflict (namespace, key) do update set id = excluded.id, until = excluded.until
where dedup.until <= :at

-- name: arrived_holder
-- The execution or inbox entry that holds a key, with its lane.
select d.id, coalesce(r.lane, a.lane)
from dedup d
left join execution e on e.id = d.id
left join route r on r.number = e.route
left join submission_inbox a on a.id = d.id
where d.namespace = :namespace and d.key = :key

-- name: arrived
insert into submission_inbox (id, at, kind, namespace, lane, options, payload)
values (:id, :at, :kind, :namespace, :lane, :options, :payload)

-- name: inbox_among
select id, at, kind, namespace, lane, options, payload from submission_inbox where id in (?)

-- name: known_inbox
select id from submission_inbox where id in (?)

-- name: admitted_inbox
delete from submission_inbox where id in (?)

-- name: completed_here
-- Runs on the application's connection, as do the next five: only while the fence stands.
insert into done (
    id, version, epoch, rank, flags, attempt, start, life,
    outcome, ended_at, claim, worker, started_at, result, trim_at
)
select
    id, version + 1, epoch, rank, flags, attempt, start, life,
    0, :now, claim, worker, started_at, :result, :trim_at
from lease
where id = :id and epoch = :epoch and claim = :claim and version = :version and expires_at > :now
returning id

-- name: completed_event
insert into event (id, at, kind, epoch, attempt, worker)
select id, :now, 10, epoch, attempt, worker from lease where id = :id

-- name: completed_lease
delete from lease where id = :id

-- name: completed_deadline
delete from deadline where id = :id

-- name: completed_outbox
insert into flow_outbox (flow, id, number, kind, outcome, spared)
select :flow, id, version, 1, 0, 0 from done where id = :id

-- name: completed_awaited
insert into flow_outbox (flow, id, number, kind, outcome, spared)
select :run, id, version, 8, 0, 0 from done where id = :id
