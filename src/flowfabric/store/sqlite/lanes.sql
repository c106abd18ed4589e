-- Lanes: what was decided about them.

-- name: lane_names
select lane from route where lane > :after
union
select name from lane where name > :after
order by 1 limit :limit

-- name: limited_lanes
-- Those a claim must not take freely from, most often none.
select name, state, concurrency from lane where state <> 0 or concurrency is not null

-- name: lanes
select name, version, doc from lane
where :names is null or name in (select value from json_each(:names))

-- name: put_lane
insert into lane (name, version, state, concurrency, doc)
select :name, :version, :state, :concurrency, :doc
where :expected = 0 or exists (select 1 from lane where name = :name)
on conflict (name) do update set
    version = excluded.version, state = excluded.state,
    concurrency = excluded.concurrency, doc = excluded.doc
where lane.version = :expected
returning name
