-- The leases workers hold.

-- name: held_leases
select
    l.id, e.flow, r.namespace, r.lane, r.kind, l.claim, l.epoch, l.attempt,
    w.id, w.instance, l.started_at, l.expires_at
from {schema}.worker w
join {schema}.lease l on l.worker = w.number
join {schema}.execution e on e.id = l.id
join {schema}.route r on r.number = e.route
where w.instance = $1 and ($4::uuid is null or l.id > $4)
    and ($2::text is null or w.id = $2)
    and ($3::text is null or r.namespace = $3)
order by l.id limit $5

-- name: held_counts
select w.id, w.instance, r.namespace, count(*)
from {schema}.worker w
join {schema}.lease l on l.worker = w.number
join {schema}.execution e on e.id = l.id
join {schema}.route r on r.number = e.route
where w.instance = any($1::text[])
group by w.id, w.instance, r.namespace
