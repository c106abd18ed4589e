-- Waitpoints, signals and dedup records.

-- name: needed
-- Everything rules asked for in one round trip; a kind that was not asked for is empty. If the
-- executions of dedup records are those of waitpoints, one each, they come as NULL. The
-- offsets keep a plan that was made while a table was empty from reading all of it for each key, and
-- so does the order of edges, which only one index has.
select 1 as kind, w.id, null::bytea as key, null::bigint as until, null::uuid as suspension, w.doc
from unnest($1::uuid[], $2::uuid[]) as a (id, waitpoint)
cross join lateral (
    select * from {schema}.waitpoint t where t.id = a.id and t.waitpoint = a.waitpoint offset 0
) w
union all
select 2, m.id, m.key, m.until, null, m.doc
from unnest(coalesce($3::uuid[], $1::uuid[]), $4::bytea[]) as a (id, key)
cross join lateral (
    select * from {schema}.dedup_record t where t.id = a.id and t.key = a.key offset 0
) m
union all
select 3, s.id, null, null, s.suspension, s.doc
from unnest($5::uuid[], $6::uuid[], $7::bigint[], $8::bigint[]) as a (id, waitpoint, taken, most)
cross join lateral (
    select * from {schema}.signal t
    where t.id = a.id and t.waitpoint = a.waitpoint and t.number > a.taken
    order by t.number limit a.most offset 0
) s
union all
select 4, a.id, null, e.outcome, null, e.doc
from unnest($9::uuid[], $10::uuid[]) as a (id, edge)
cross join lateral (
    select x.flow from {schema}.execution x where x.id = a.id offset 0
) m
cross join lateral (
    select t.outcome, t.doc from {schema}.edge t where t.flow = m.flow and t.id = a.edge offset 0
) e
union all
select 4, a.id, null, e.outcome, null, e.doc
from unnest($11::uuid[]) as a (id)
cross join lateral (
    select x.flow from {schema}.execution x where x.id = a.id offset 0
) m
cross join lateral (
    select t.outcome, t.doc from {schema}.edge t
    where t.flow = m.flow and t.downstream >= a.id and t.downstream <= a.id
    order by t.downstream, t.id offset 0
) e

-- name: waitpoint_owners
select w.waitpoint, w.id
from unnest($1::uuid[]) as a (waitpoint)
cross join lateral (
    select * from {schema}.waitpoint t
    where t.waitpoint = a.waitpoint and t.attempt is not null offset 0
) w

-- name: signals_of
select doc, suspension from {schema}.signal
where id = $1 and number > $2::bigint
order by number limit $3

-- name: signals_counted
-- A query of its own, because a plan that serves every value could not use the index.
select doc, suspension from {schema}.signal
where id = $1 and suspension = $4::uuid and number > $2::bigint
order by number limit $3

-- name: suspended_executions
select s.*
from (
    select p.since, p.id from {schema}.parked p
    where p.gate = 20 and ($1::bigint is null or (p.since, p.id) > ($1, $2::uuid))
        and (
            $3::text is null or (
                select e.route from {schema}.execution e where e.id = p.id
            ) in (select r.number from {schema}.route r where r.namespace = $3)
        )
    order by p.since, p.id limit $4
) best
cross join lateral (
    select * from {schema}.snapshot v where v.place = 'parked' and v.id = best.id offset 0
) s
order by best.since, best.id
