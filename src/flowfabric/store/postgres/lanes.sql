-- Lanes: what was decided about them.

-- name: lane_names
select n.name
from (
    select t.lane as name from {schema}.route t where $1::text is null or t.lane > $1
    union
    select l.name from {schema}.lane l where $1::text is null or l.name > $1
) n
order by n.name limit $2

-- name: lanes
select l.name, l.version, l.doc from {schema}.lane l
where $1::text[] is null or l.name = any($1)

-- name: put_lane
insert into {schema}.lane (name, version, state, concurrency, doc)
select $1, $2, $3, $4, $5
where $6::bigint = 0 or exists (select from {schema}.lane l where l.name = $1)
on conflict (name) do update set
    version = excluded.version, state = excluded.state, concurrency = excluded.concurrency,
    doc = excluded.doc
where lane.version = $6
returning name
