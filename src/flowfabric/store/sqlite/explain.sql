-- Who is where: what an explanation names.

-- name: slot_holders
select id from lease where queue in (select value from json_each(:queues))
union all
select id from ready where queue in (select value from json_each(:queues))
limit :limit

-- name: running_in_lane
select id from lease where route in (select value from json_each(:routes)) limit :limit

-- name: ready_routes
select w.value, w.number from (
    select wanted.value, (
        select count(*) from (
            select 1 from ready where route = wanted.value and lost is null limit :most
        )
    ) as number
    from json_each(:routes) as wanted
) as w
where w.number > 0

-- name: slots_in
select r.id
from json_each(:routes) as wanted
cross join ready as r on r.route = wanted.value
where r.queue is not null and r.lost is null and (r.rank, r.id) > (:rank, :id)
order by r.rank, r.id
limit :limit

-- name: route_depths
select d.route, d.waits, d.runs, d.lowest, e.id, e.created_at
from (
    select route, sum(waits) as waits, sum(runs) as runs, min(lowest) as lowest
    from (
        select route, count(*) as waits, 0 as runs, min(id) as lowest
        from (select route, id from ready where lost is null limit :limit)
        group by route
        union all
        select route, 0, count(*), null
        from (select route from lease limit :limit)
        group by route
    )
    group by route
) as d
left join execution as e on e.id = (
    select r.id from ready as r
    where r.route = d.route and r.lost is null
    order by r.rank, r.id
    limit 1
)
order by d.route
