-- Lanes: what was decided about them.

-- name: lane_names
select lane from route where lane > :after
union
select name from lane where name > :after
order by 1 limit :limit

-- name: limited_lanes
-- Those a claim must not take freely from, most often none.
select name, state, concurrency from lane where state <> 0 or concurrency is not null
