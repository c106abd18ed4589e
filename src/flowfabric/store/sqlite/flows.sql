-- Flows, their edges and members, and what is owed to them.

-- part: wanted_flows
-- Those of the filter.
    and (:namespace is null or f.namespace = :namespace)
    and (:kind is null or f.kind = :kind)
    and (:states is null or instr(:states, ',' || f.state || ',') > 0)
    and (
        :tag_key is null
        or exists (select 1 from flow_tag where id = f.id and key = :tag_key and value = :tag_value)
    )

-- name: listed_flows
-- `:states` is null or words between commas.
select f.id, f.version, f.doc from flow as f
where (f.created_at, f.id) > (:after_at, :after_id)
    -- include: wanted_flows
order by f.created_at, f.id
limit :limit

-- name: listed_flows_newest_first
select f.id, f.version, f.doc from flow as f
where (f.created_at, f.id) < (:after_at, :after_id)
    -- include: wanted_flows
order by f.created_at desc, f.id desc
limit :limit

-- name: new_flow
insert into flow (id, version, namespace, kind, state, created_at, ended_at, doc)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict (id) do nothing
returning id

-- name: changed_flow
update flow
set version = ?2, namespace = ?3, kind = ?4, state = ?5, created_at = ?6, ended_at = ?7, doc = ?8
where id = ?1 and version = ?9
returning id

-- name: new_flow_tags
insert into flow_tag (id, key, value) values (?, ?, ?)

-- name: gone_flow_tags
delete from flow_tag where id in (?)

-- name: new_edges
-- One that is there stays.
insert into edge (flow, id, upstream, downstream, doc) values (?, ?, ?, ?, ?)
on conflict (flow, id) do nothing

-- name: changed_edges
update edge set doc = ? where flow = ? and id = ?

-- name: settled_edges
update edge set outcome = ? where flow = ? and id = ?

-- name: joined_executions
update execution set flow = ? where id = ?

-- name: edges_of_flow
select doc, outcome from edge
where flow = ? and id > ? and (? = 0 or outcome is null)
order by id limit ?

-- name: edges_by_id
-- The plus keeps the planner from reading the whole flow.
with given (id) as (values (?))
select doc, outcome from edge
where id in (select id from given) and flow = ? and +id > ? and (? = 0 or outcome is null)
order by id limit ?

-- name: edges_out
with given (id) as (values (?))
select doc, outcome from edge indexed by edge_upstream
where upstream in (select id from given) and flow = ? and id > ? and (? = 0 or outcome is null)
order by id limit ?

-- name: unsettled_edges_out
with given (id) as (values (?))
select doc, outcome from edge indexed by edge_unsettled
where upstream in (select id from given) and flow = ? and id > ? and ? = 1 and outcome is null
order by id limit ?

-- name: edges_in
with given (id) as (values (?))
select doc, outcome from edge indexed by edge_downstream
where downstream in (select id from given) and flow = ? and id > ? and (? = 0 or outcome is null)
order by id limit ?

-- name: unsatisfied_edges_in
-- Documents that contain the last value are left out.
select count(*) from edge indexed by edge_downstream
where flow = ? and downstream = ? and outcome is null and instr(doc, ?) = 0

-- name: new_outbox
insert into flow_outbox (flow, id, number, kind, outcome, spared) values (?, ?, ?, ?, ?, ?)
on conflict (flow, id, number, kind) do nothing

-- name: missing_outbox
with given (flow, id, number, kind) as (values (?, ?, ?, ?))
select 1 from given as g
left join flow_outbox as c
    on c.flow = g.flow and c.id = g.id and c.number = g.number and c.kind = g.kind
where c.flow is null

-- name: gone_outbox
delete from flow_outbox where flow = ? and id = ? and number = ? and kind = ?

-- name: outbox
select flow, id, number, kind, outcome, spared from flow_outbox
where flow = :flow
order by id, number, kind limit :limit

-- name: owed_flows
-- From one flow to the next, however much is owed to each.
with recursive owing (flow) as (
    select min(flow) from flow_outbox where flow > :after
    union all
    select (select min(c.flow) from flow_outbox as c where c.flow > o.flow)
    from owing as o where o.flow is not null
    limit :limit
)
select flow from owing where flow is not null

-- name: members
select e.id from execution as e indexed by execution_flow
where e.flow = :flow and e.id > :after
    and coalesce(
        (select flags from done where id = e.id),
        (select flags from ready where id = e.id),
        (select flags from lease where id = e.id),
        (select flags from parked where id = e.id)
    ) & 4
order by e.id limit :limit

-- name: living_members
select e.id from execution as e indexed by execution_flow
where e.flow = :flow and e.id > :after
    and coalesce(
        (select flags from parked where id = e.id),
        (select flags from ready where id = e.id),
        (select flags from lease where id = e.id)
    ) & 4
order by e.id limit :limit

-- name: member_counts
-- Spot (as in listed_executions), why it is blocked, how many.
select iif(s.lost is null, 30, 31), null, count(*)
from execution as e indexed by execution_flow cross join ready as s on s.id = e.id
where e.flow = :flow and s.flags & 4
group by 1
union all
select 32, null, count(*)
from execution as e indexed by execution_flow cross join lease as s on s.id = e.id
where e.flow = :flow and s.flags & 4
union all
select
    s.gate,
    case when s.gate = 2 and json_valid(cast(s.life as text))
        then json_extract(cast(s.life as text), '$.blocked')
    end,
    count(*)
from execution as e indexed by execution_flow cross join parked as s on s.id = e.id
where e.flow = :flow and s.flags & 4
group by 1, 2
union all
select 40 + s.outcome, null, count(*)
from execution as e indexed by execution_flow cross join done as s on s.id = e.id
where e.flow = :flow and s.flags & 4
group by 1

-- name: trimmable_members
-- Members that may go, of flows that ended before and that no replay (an outbox entry of kind 2) has begun
-- again since.
select d.id
from flow as f indexed by flow_ended_at
cross join execution as e indexed by execution_flow on e.flow = f.id
cross join done as d on d.id = e.id
where f.ended_at <= :ended_before and d.flags & 4
    and ((d.trim_at is null and d.ended_at <= :ended_before) or d.trim_at <= :now)
    and not exists (select 1 from flow_outbox as c where c.flow = f.id and c.kind = 2)
    -- include: swept
limit :limit

-- name: trimmed_edges
-- The edges into members that go.
delete from edge where (flow, downstream) in (
    select flow, id from execution where flow is not null and id in (?)
)

-- name: trimmable_flows
select f.id from flow as f indexed by flow_ended_at
where f.ended_at <= :ended_before
    and not exists (select 1 from execution as e where e.flow = f.id)
    and (:namespace is null or f.namespace = :namespace)
    and (
        :tag_key is null
        or exists (select 1 from flow_tag where id = f.id and key = :tag_key and value = :tag_value)
    )
limit :limit

-- name: trimmed_flow_edges
delete from edge where flow in (?)

-- name: trimmed_outbox
delete from flow_outbox where flow in (?)

-- name: trimmed_flows
delete from flow where id in (?)
