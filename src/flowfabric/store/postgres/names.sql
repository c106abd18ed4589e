-- Routes and workers.

-- name: names_lock
-- Numbers become visible in the order they are given.
select pg_advisory_xact_lock(hashtextextended('flowfabric names of {schema}', 0))

-- name: new_route
insert into {schema}.route (number, namespace, lane, kind, capabilities)
select coalesce(max(r.number), 0) + 1, $1, $2, $3, $4 from {schema}.route r

-- name: new_worker
insert into {schema}.worker (number, id, instance)
select coalesce(max(w.number), 0) + 1, $1, $2 from {schema}.worker w
