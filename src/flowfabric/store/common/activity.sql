-- What a store is doing now.

-- name: lane_activity
-- Of each lane: what waits for a worker (of each route up to $1), what runs, and when the first in
-- line was created.
select w.lane, sum(w.ready), sum(w.running), min(w.oldest)
from (
    select
        r.lane,
        (
            select count(*) from (
                select 1 from {schema}.ready q where q.route = r.number and q.lost is null limit $1
            ) n
        ) as ready,
        coalesce(u.running, 0) as running,
        (
            select e.created_at from {schema}.ready q join {schema}.execution e on e.id = q.id
            where q.route = r.number order by q.rank, q.id limit 1
        ) as oldest
    from {schema}.route r
    left join (
        select l.route, count(*) as running from {schema}.lease l group by l.route
    ) u on u.route = r.number
) w
group by w.lane
order by w.lane

-- name: event_activity
-- How many events of each kind there are after $1, how many executions (kind 0) were created after
-- $2, both up to $3, and (kind -1) the last number of all.
select v.kind, count(*), max(v.seq)
from (select kind, seq from {schema}.event where seq > $1 order by seq limit $3) v
group by v.kind
union all
select 0, (
    select count(*) from (
        select 1 from {schema}.execution where created_at > $2 limit $3
    ) n
), null
union all
select -1, 0, (select max(seq) from {schema}.event)
