-- The worker registry. An entry that is marked dead has an expiry that never comes. Names are
-- compared byte by byte, so that lists have the same order on every server.

-- name: presence
select instance, doc from {schema}.presence where namespace = $1 and instance = $2

-- name: presences
select instance, doc from {schema}.presence
where (namespace collate "C", instance collate "C") > ($2, $3)
    and ($1::text is null or namespace = $1)
order by namespace collate "C", instance collate "C" limit $4

-- name: marked_presences
select instance, doc from {schema}.presence where expires_at = $1
order by namespace collate "C", instance collate "C" limit $2

-- name: new_presence
insert into {schema}.presence (namespace, instance, expires_at, doc) values ($1, $2, $3, $4)
on conflict (namespace, instance) do nothing
returning instance

-- name: changed_presence
update {schema}.presence set expires_at = $3, doc = $4
where namespace = $1 and instance = $2
    and {schema}.readable_json(doc) ->> 'stamp' is not distinct from $5
returning instance

-- name: dropped_presence
delete from {schema}.presence
where namespace = $1 and instance = $2
    and {schema}.readable_json(doc) ->> 'stamp' is not distinct from $3
returning instance

-- name: lapsed_presences
delete from {schema}.presence where expires_at <= $1 returning namespace, instance

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
