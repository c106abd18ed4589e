-- Who is where: what an explanation names.

-- name: slot_holders
select l.id from {schema}.lease l where l.queue = any($1::bigint[])
union all
select q.id from {schema}.ready q where q.queue = any($1::bigint[])
limit $2

-- name: running_in_lane
select l.id from {schema}.lease l
where l.route in (select r.number from {schema}.route r where r.lane = $1)
limit $2

-- name: ready_routes
select w.namespace, w.kind, w.capabilities, w.count
from (
    select r.namespace, r.kind, r.capabilities, (
        select count(*) from (
            select from {schema}.ready q where q.route = r.number and q.lost is null limit $3
        ) n
    ) as count
    from {schema}.route r
    where r.lane = $1 and ($2::text is null or r.namespace = $2)
) w
where w.count > 0

-- name: newest_route
select max(number) from {schema}.route

-- name: slots_in
select r.id
from unnest($1::integer[]) as wanted (number)
cross join lateral (
    select q.id, q.rank from {schema}.ready q
    where q.route = wanted.number and q.queue is not null and q.lost is null
        and (q.rank, q.id) > ($2::bigint, $3::uuid)
    order by q.rank, q.id
    limit $4
) r
order by r.rank, r.id
limit $4

-- name: route_depths
-- The lowest id is compared as text: Postgres has no min() of uuid before version 18.
with waiting as (
    select q.route, count(*) as number, min(q.id::text)::uuid as lowest
    from (select r.route, r.id from {schema}.ready r where r.lost is null limit $1) q
    group by q.route
),
running as (
    select l.route, count(*) as number
    from (select h.route from {schema}.lease h limit $1) l
    group by l.route
)
select
    r.namespace, r.lane, r.kind, r.capabilities, coalesce(w.number, 0), coalesce(u.number, 0),
    w.lowest, f.id, f.created_at
from waiting w
full join running u on u.route = w.route
join {schema}.route r on r.number = coalesce(w.route, u.route)
left join lateral (
    select e.id, e.created_at
    from {schema}.ready q
    join {schema}.execution e on e.id = q.id
    where q.route = w.route and q.lost is null
    order by q.rank, q.id
    limit 1
) f on true
order by r.number
