-- Flows, their edges and members, and what is owed to them.

-- name: flow_stamp
select stamp from {schema}.flow where id = $1

-- part: wanted_flows
-- Those of the filter.
    and ($3::text is null or f.namespace = $3)
    and ($4::text is null or f.kind = $4)
    and (cardinality($5::text[]) = 0 or f.state = any($5))
    and (
        $6::text is null
        or f.id in (select t.id from {schema}.flow_tag t where t.key = $6 and t.value = $7::text)
    )

-- name: listed_flows
select f.id, f.version, f.doc from {schema}.flow f
where ($1::bigint is null or (f.created_at, f.id) > ($1, $2::uuid))
    -- include: wanted_flows
order by f.created_at, f.id
limit $8

-- name: listed_flows_newest_first
select f.id, f.version, f.doc from {schema}.flow f
where ($1::bigint is null or (f.created_at, f.id) < ($1, $2::uuid))
    -- include: wanted_flows
order by f.created_at desc, f.id desc
limit $8

-- name: new_flow
insert into {schema}.flow (id, version, namespace, kind, state, created_at, ended_at, doc, stamp)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (id) do nothing
returning id

-- name: laid_flows
-- New flows with their edges and members, of which those of a flow that is there are left out. An
-- edge that is there stays. The members are as `submitted_executions` takes them.
with admission as materialized (select false as stands),
laid as (
    insert into {schema}.flow (
        id, version, namespace, kind, state, created_at, ended_at, doc, stamp
    )
    select f.*, $48
    from unnest(
        $40::uuid[], $41::integer[], $42::text[], $43::text[], $44::text[], $45::bigint[],
        $46::bigint[], $47::bytea[]
    ) as f (id, version, namespace, kind, state, created_at, ended_at, doc)
    on conflict (id) do nothing
    returning flow.id
),
tagged as (
    insert into {schema}.flow_tag (id, key, value)
    select t.id, t.key, t.value
    from unnest($49::uuid[], $50::text[], $51::text[]) as t (id, key, value)
    where (t.id in (select laid.id from laid)) is true
),
joined as (
    insert into {schema}.edge (flow, id, upstream, downstream, doc)
    select e.flow, e.id, e.upstream, e.downstream, e.doc
    from unnest($52::uuid[], $53::uuid[], $54::uuid[], $55::uuid[], $56::bytea[])
        as e (flow, id, upstream, downstream, doc)
    where (e.flow in (select laid.id from laid)) is true
    on conflict (flow, id) do nothing
),
given as materialized (
    -- include: given_rows
    where (n.flow in (select laid.id from laid)) is true
),
-- include: created_rows
select laid.id from laid

-- name: changed_flow
update {schema}.flow
set version = $2, namespace = $3, kind = $4, state = $5, created_at = $6, ended_at = $7, doc = $8,
    stamp = $9
where id = $1 and version = $10
returning id

-- name: new_flow_tags
insert into {schema}.flow_tag (id, key, value)
select * from unnest($1::uuid[], $2::text[], $3::text[])

-- name: gone_flow_tags
delete from {schema}.flow_tag where id = any($1::uuid[])

-- name: new_edges
-- One that is there stays.
insert into {schema}.edge (flow, id, upstream, downstream, doc)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[])
on conflict (flow, id) do nothing

-- name: changed_edges
-- Like settled_edges: only the session that locks the downstream's state row writes its edges.
update {schema}.edge t set doc = g.doc
from unnest($1::bytea[], $2::uuid[], $3::uuid[]) as g (doc, flow, id)
where t.flow = g.flow and t.id = g.id

-- name: joined_executions
update {schema}.execution t
set flow = g.flow
from unnest($1::uuid[], $2::uuid[]) as g (flow, id)
where t.id = g.id

-- name: edges_of_flow
select e.doc, e.outcome from {schema}.edge e
where e.flow = $1 and e.id >= $2 and (e.outcome is null or not $3)
order by e.id limit $4

-- name: edges_by_id
select e.doc, e.outcome
from unnest($5::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.edge t where t.flow = $1 and t.id = a.id offset 0
) e
where e.id >= $2 and (e.outcome is null or not $3)
order by e.id limit $4

-- name: edges_out
-- Of each execution no more than are wanted of all. Equality is asked for in a way that only one
-- index has the order of: while the table is empty, or its flows are small, all look equally good.
select e.doc, e.outcome
from unnest($5::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.edge t
    where t.flow = $1 and (t.upstream, t.id) >= (a.id, $2) and t.upstream <= a.id
        and (t.outcome is null or not $3)
    order by t.upstream, t.id limit $4
) e
order by e.id limit $4

-- name: unsettled_edges_out
select e.doc, e.outcome
from unnest($5::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.edge t
    where t.flow = $1 and (t.upstream, t.id) >= (a.id, $2) and t.upstream <= a.id
        and $3 and t.outcome is null
    order by t.upstream, t.id limit $4
) e
order by e.id limit $4

-- name: edges_in
select e.doc, e.outcome
from unnest($5::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.edge t
    where t.flow = $1 and (t.downstream, t.id) >= (a.id, $2) and t.downstream <= a.id
        and (t.outcome is null or not $3)
    order by t.downstream, t.id limit $4
) e
order by e.id limit $4

-- name: unsatisfied_edges_in
-- Documents that contain the last value are left out. Equality as in edges_out.
select count(*) from {schema}.edge e
where e.flow = $1 and (e.downstream, e.id) >= ($2, $3) and e.downstream <= $2
    and e.outcome is null and position($4::bytea in e.doc) = 0

-- name: gone_outbox
-- Looked up by key and then by place, like counted_signals. They are never updated, and only the
-- session that locks the flow deletes them.
delete from {schema}.flow_outbox t
using (
    select f.ctid as place
    from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::smallint[]) as c (flow, id, number, kind)
    cross join lateral (
        select s.ctid from {schema}.flow_outbox s
        where s.flow = c.flow and s.id = c.id and s.number = c.number and s.kind = c.kind
        offset 0
    ) f
) g
where t.ctid = g.place
returning t.id

-- name: owing_flows
-- Flows, then their outbox entries with whether the member (of an entry of kind 1) has open edges.
-- Equality as in edges_out.
select f.id, null::uuid, f.version, null::smallint, null::smallint, null::boolean, false, f.doc
from unnest($1::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.flow t where t.id >= a.id and t.id <= a.id order by t.id limit 1
) f
union all
select
    c.flow, c.id, c.number, c.kind, c.outcome, c.spared,
    c.kind = 1 and exists (
        select from {schema}.edge e
        where e.flow = c.flow and (e.upstream, e.id) >= (c.id, $3) and e.upstream <= c.id
            and e.outcome is null
    ),
    null
from unnest($1::uuid[]) as a (id)
cross join lateral (
    select * from {schema}.flow_outbox t where t.flow = a.id order by t.id, t.number, t.kind limit $2
) c

-- name: counted_flows
-- Flows whose version is current, and their outbox entries: those that are done are deleted, new ones
-- inserted. A statement that had to wait for a flow finds another version. While the version is
-- current, no other session has counted the entries, so they are where they were seen.
with counted as (
    update {schema}.flow t
    set version = g.version, namespace = g.namespace, kind = g.kind, state = g.state,
        created_at = g.created_at, ended_at = g.ended_at, doc = g.doc
    from (
        select f.ctid as place, m.*
        from unnest(
            $1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[],
            $7::bigint[], $8::bytea[], $9::integer[]
        ) as m (id, version, namespace, kind, state, created_at, ended_at, doc, expected)
        cross join lateral (
            select s.ctid from {schema}.flow s
            where s.id = m.id and s.version = m.expected offset 0
        ) f
    ) g
    where t.ctid = g.place and t.version = g.expected
    returning t.id
),
gone as (
    delete from {schema}.flow_outbox t
    using (
        select f.ctid as place
        from unnest($10::uuid[], $11::uuid[], $12::integer[], $13::smallint[])
            as c (flow, id, number, kind)
        cross join lateral (
            select s.ctid from {schema}.flow_outbox s
            where s.flow = c.flow and s.id = c.id and s.number = c.number and s.kind = c.kind
            offset 0
        ) f
        where (c.flow in (select counted.id from counted)) is true
    ) g
    where t.ctid = g.place
),
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select c.flow, c.id, c.number, c.kind, c.outcome, c.spared
    from unnest(
        $14::uuid[], $15::uuid[], $16::integer[], $17::smallint[], $18::smallint[], $19::boolean[]
    ) as c (flow, id, number, kind, outcome, spared)
    where (c.flow in (select counted.id from counted)) is true
    on conflict (flow, id, number, kind) do nothing
)
select counted.id from counted

-- name: unsettled_edges
-- Each with its downstream, as one moment saw both; a downstream with several edges comes with the
-- first of them only, because it may be large. Equality as in edges_out.
select s.*, o.downstream, o.doc
from (
    select
        e.id, e.downstream, e.doc,
        row_number() over (partition by e.downstream order by e.id) as nth
    from (
        select t.id, t.downstream, t.doc
        from unnest($1::uuid[], $2::uuid[]) as a (flow, upstream)
        cross join lateral (
            select * from {schema}.edge t
            where t.flow = a.flow and (t.upstream, t.id) >= (a.upstream, $3)
                and t.upstream <= a.upstream and t.outcome is null
            order by t.upstream, t.id limit $4
        ) t
        order by t.id limit $5
    ) e
) o
left join lateral (
    select * from {schema}.snapshot v
    where v.id = case o.nth when 1 then o.downstream end offset 0
) s on true
order by o.id

-- name: owed_flows
-- From one flow to the next, however much is owed to each.
with recursive owing (flow) as (
    select (select c.flow from {schema}.flow_outbox c where c.flow >= $1 order by c.flow limit 1)
    union all
    select (select c.flow from {schema}.flow_outbox c where c.flow > o.flow order by c.flow limit 1)
    from owing o where o.flow is not null
)
select flow from owing where flow is not null limit $2

-- name: members
select s.*
from (
    select e.id from {schema}.execution e where e.flow = $1 and e.id >= $2 order by e.id
) m
cross join lateral (
    select * from {schema}.snapshot v where v.id = m.id offset 0
) s
where s.flags & 4 <> 0
order by m.id limit $3

-- name: living_members
select s.*
from (
    select e.id from {schema}.execution e where e.flow = $1 and e.id >= $2 order by e.id
) m
cross join lateral (
    select * from {schema}.snapshot v where v.id = m.id and v.place <> 'done' offset 0
) s
where s.flags & 4 <> 0
order by m.id limit $3

-- name: member_counts
-- As state_counts.
select s.place, s.cell, s.blocked, count(*), 0 as seen
from {schema}.execution e
cross join lateral (
    select 'ready' as place, q.lost as cell, null::text as blocked, q.flags
    from {schema}.ready q where q.id = e.id
    union all
    select 'lease', null, null, l.flags from {schema}.lease l where l.id = e.id
    union all
    select
        'parked', w.gate,
        case w.gate when 2 then {schema}.readable_json(w.life) ->> 'blocked' end,
        w.flags
    from {schema}.parked w where w.id = e.id
    union all
    select 'done', d.outcome, null, d.flags from {schema}.done d where d.id = e.id
) s
where e.flow = $1 and s.flags & 4 <> 0
group by s.place, s.cell, s.blocked

-- name: trimmable_members
-- Members that may go, of flows that ended before and that no replay (an outbox entry of kind 2) has begun
-- again since. Both are locked, so that neither happens meanwhile.
select d.id
from {schema}.flow f
join {schema}.execution e on e.flow = f.id
join {schema}.done d on d.id = e.id
where f.ended_at <= $4 and d.flags & 4 <> 0
    and ((d.trim_at is null and d.ended_at <= $4) or d.trim_at <= $5)
    and not exists (select from {schema}.flow_outbox c where c.flow = f.id and c.kind = 2)
    -- include: swept
limit $6
for update of d skip locked
for share of f skip locked

-- name: trimmed_edges
-- The edges into members that go.
delete from {schema}.edge t
using {schema}.execution e
where e.id = any($1::uuid[]) and t.flow = e.flow and t.downstream = e.id

-- name: trimmable_flows
select f.id from {schema}.flow f
where f.ended_at <= $4
    and not exists (select from {schema}.execution e where e.flow = f.id)
    and ($1::text is null or f.namespace = $1)
    and (
        $2::text is null
        or $3::text = (select t.value from {schema}.flow_tag t where t.id = f.id and t.key = $2)
    )
limit $5
for update skip locked

-- name: trimmed_flow_edges
delete from {schema}.edge where flow = any($1::uuid[])

-- name: trimmed_outbox
delete from {schema}.flow_outbox where flow = any($1::uuid[])

-- name: trimmed_flows
delete from {schema}.flow where id = any($1::uuid[])
