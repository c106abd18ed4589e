-- The worker registry. An entry that is marked dead has an expiry that never comes.

-- name: presence
select instance, doc from presence where namespace = :namespace and instance = :instance

-- name: presences
select instance, doc from presence
where (namespace, instance) > (:after_namespace, :after_instance)
    and (:namespace is null or namespace = :namespace)
order by namespace, instance limit :limit

-- name: marked_presences
select instance, doc from presence where expires_at = :forever order by namespace, instance limit :limit

-- name: new_presence
insert into presence (namespace, instance, expires_at, doc)
values (:namespace, :instance, :expires_at, :doc)
on conflict (namespace, instance) do nothing
returning instance

-- name: changed_presence
update presence set expires_at = :expires_at, doc = :doc
where namespace = :namespace and instance = :instance
    and iif(json_valid(cast(doc as text)), json_extract(cast(doc as text), '$.stamp'), null) is :stamp
returning instance

-- name: dropped_presence
delete from presence
where namespace = :namespace and instance = :instance
    and iif(json_valid(cast(doc as text)), json_extract(cast(doc as text), '$.stamp'), null) is :stamp
returning instance

-- name: lapsed_presences
delete from presence where expires_at <= :now returning namespace, instance

-- name: held_leases
select
    l.id, e.flow, r.namespace, r.lane, r.kind, l.claim, l.epoch, l.attempt,
    w.id, w.instance, l.started_at, l.expires_at
from worker as w
join lease as l on l.worker = w.number
join execution as e on e.id = l.id
join route as r on r.number = e.route
where w.instance = :instance and l.id > :after
    and (:worker is null or w.id = :worker)
    and (:namespace is null or r.namespace = :namespace)
order by l.id limit :limit

-- name: held_counts
select w.id, w.instance, r.namespace, count(*)
from worker as w
join lease as l on l.worker = w.number
join execution as e on e.id = l.id
join route as r on r.number = e.route
where w.instance in (select value from json_each(:instances))
group by w.id, w.instance, r.namespace
