-- name: snapshots
select * from snapshot where id in (?)

-- name: details
-- What a person sees beside the snapshot; the last column is when anything last happened.
select
    e.payload,
    (
        select json_group_array(json_array(attempt, percent, message))
        from progress where id = e.id
    ),
    (
        select state_value from progress
        where id = e.id and state_value is not null order by attempt desc limit 1
    ),
    max(
        e.created_at,
        coalesce((select max(at) from progress where id = e.id), 0),
        coalesce((select max(at) from tag where id = e.id), 0),
        coalesce((select at from event where id = e.id order by seq desc limit 1), 0),
        coalesce((select max(started_at, coalesce(renewed_at, 0)) from lease where id = e.id), 0),
        coalesce((select ended_at from done where id = e.id), 0)
    )
from execution as e where e.id = :id

-- name: tags_of
select key, value from tag where id = :id order by key

-- name: attempts_at
select doc from attempt where id = :id and "index" = :index

-- name: steps_of
select generation, position, name, occurrence, doc
from step where id = :id and generation = :generation
order by position, name, occurrence

-- name: candidates_of_route
select r.rank, r.id from ready as r
where r.route = :route and r.lost is null and r.held_until <= :now
order by r.rank, r.id
limit :limit

-- name: begun_candidates_of_route
select r.rank, r.id from ready as r indexed by ready_begun
where r.route = :route and r.start <> 0 and r.start <> 2 and r.lost is null and r.held_until <= :now
order by r.rank, r.id
limit :limit

-- name: expired_leases
-- Leases that ran out, and lost executions with the lease they lost. One that was revoked ended then.
select x.id, e.route, e.flow, x.claim, x.epoch, x.instance, x.expires_at, x.attempt
from (
    select l.id, l.claim, l.epoch, w.instance, l.expires_at, l.attempt
    from lease as l join worker as w on w.number = l.worker
    where l.expires_at <= :as_of
    union all
    select
        id, json_extract(lapsed, '$.lease_id'), json_extract(lapsed, '$.epoch'),
        json_extract(lapsed, '$.worker.instance'),
        min(json_extract(lapsed, '$.expires_at'), json_extract(lapsed, '$.at')),
        json_extract(lapsed, '$.index')
    from (
        select id, json_extract(cast(life as text), '$.lapsed') as lapsed
        from ready where lost is not null and json_valid(cast(life as text))
    )
) as x
join execution as e on e.id = x.id
where (x.expires_at, x.id) > (:expires_at, :id) and x.expires_at <= :as_of
    and (
        :namespace is null
        or e.route in (select number from route where namespace = :namespace)
    )
order by x.expires_at, x.id
limit :limit

-- part: wanted_executions
-- Executions of the window `e` that pass the filter.
where (:routes is null or e.route in (select value from json_each(:routes)))
    and (
        :tag_key is null
        or exists (select 1 from tag where id = e.id and key = :tag_key and value = :tag_value)
    )
    and (:flow is null or e.flow = :flow)
    and (
        :spots is null
        or coalesce(
            (select 40 + outcome from done where id = e.id),
            (select iif(lost is null, 30, 31) from ready where id = e.id),
            (select 32 from lease where id = e.id),
            (select gate from parked where id = e.id)
        ) in (select value from json_each(:spots))
    )
limit :limit

-- name: listed_executions
-- One window of the list, filtered. `:routes` and `:spots` are null or JSON arrays of numbers; a
-- spot is a gate, or 30 ready, 31 lost, 32 leased, 40 and on ended with that outcome. The window
-- is read in its own order and no further than needed, so nothing is sorted outside of it.
select e.created_at, e.id
from (
    select created_at, id, route, flow from execution
    where (created_at, id) > (:after_at, :after_id)
        and created_at >= :created_from and created_at < :created_until
    order by created_at, id
    limit :window
) as e
-- include: wanted_executions

-- name: listed_executions_newest_first
select e.created_at, e.id
from (
    select created_at, id, route, flow from execution
    where (created_at, id) < (:after_at, :after_id)
        and created_at >= :created_from and created_at < :created_until
    order by created_at desc, id desc
    limit :window
) as e
-- include: wanted_executions

-- name: window_end
-- The last row of a full window, nothing when the list ends before.
select created_at, id from execution
where (created_at, id) > (:after_at, :after_id)
    and created_at >= :created_from and created_at < :created_until
order by created_at, id
limit 1 offset :window - 1

-- name: window_end_newest_first
select created_at, id from execution
where (created_at, id) < (:after_at, :after_id)
    and created_at >= :created_from and created_at < :created_until
order by created_at desc, id desc
limit 1 offset :window - 1

-- name: executions_by_partition
select e.id from execution as e
where e.id > :after
    and (
        e.flow is not null
        or e.route in (
            select number from route where lane in (select value from json_each(:lanes))
        )
    )
order by e.id
limit :limit

-- name: failed_executions
select id from done
where outcome = 1 and ended_at >= :since and ended_at <= :at
    and (ended_at < :at or id < :id)
order by ended_at desc, id desc
limit :limit

-- name: state_counts
-- Spot (as in listed_executions), why it is blocked, how many. Of each place at most `:window`
-- rows are looked at, and of each outcome `:ended`.
select iif(s.lost is null, 30, 31) as spot, null as reason, count(*)
from (select lost, route from ready limit :window) as s
where :routes is null or s.route in (select value from json_each(:routes))
group by 1
union all
select 32, null, count(*)
from (select id from lease limit :window) as s
where :routes is null or (select route from execution where id = s.id) in (
    select value from json_each(:routes)
)
union all
select
    s.gate,
    case when s.gate = 2 and json_valid(cast(s.life as text))
        then json_extract(cast(s.life as text), '$.blocked')
    end,
    count(*)
from (select id, gate, life from parked limit :window) as s
where :routes is null or (select route from execution where id = s.id) in (
    select value from json_each(:routes)
)
group by 1, 2
union all
select 40 + wanted.value, null, (
    select count(*) from (select id from done where outcome = wanted.value limit :ended) as s
    where :routes is null or (select route from execution where id = s.id) in (
        select value from json_each(:routes)
    )
)
from json_each('[0, 1, 2, 3, 4]') as wanted

-- name: full_windows
-- One spot of each place of state_counts that has `:window` rows or more. Without a filter the
-- counts of outcomes say it themselves.
select 30 where (select count(*) from (select 1 from ready limit :window)) = :window
union all
select 32 where (select count(*) from (select 1 from lease limit :window)) = :window
union all
select 0 where (select count(*) from (select 1 from parked limit :window)) = :window
union all
select 40 + wanted.value from json_each('[0, 1, 2, 3, 4]') as wanted
where :filtered and (
    select count(*) from (select 1 from done where outcome = wanted.value limit :window)
) = :window

-- name: ended_executions
select id from done where id in (?)
