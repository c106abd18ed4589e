-- The leases workers hold.

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
