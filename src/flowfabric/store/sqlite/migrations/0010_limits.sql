-- Limits: quotas, the queues before them, budgets and lanes.

create table quota (
    name text primary key,
    version integer not null check (version >= 1),
    doc blob not null
) strict, without rowid;

-- Which queues a quota has, and when each was last served.
create table queue (
    quota text not null,
    id integer not null check (id >= 0),
    turn integer not null default 0,
    uses blob not null,
    primary key (quota, id)
) strict, without rowid;

create index queue_turn on queue (quota, turn, id);
create index queue_id on queue (id);

-- How many were let through when: what a rate counts. The key is empty for all of a quota.
create table admission (
    quota text not null,
    key text not null,
    at integer not null,
    count integer not null check (count > 0),
    primary key (quota, key, at)
) strict, without rowid;

create index admission_at on admission (quota, at);

create table budget (
    name text primary key,
    version integer not null check (version >= 1),
    parent text,
    scope text,
    scope_id text,
    next_reset_at integer,
    doc blob not null,
    check ((scope is null) = (scope_id is null))
) strict, without rowid;

create index budget_next_reset_at on budget (next_reset_at, name) where next_reset_at is not null;
create index budget_scope on budget (scope, scope_id, name) where scope is not null;

-- What an execution has spent of a budget.
create table ledger (
    budget text not null,
    execution blob not null check (length(execution) = 16),
    doc blob not null,
    primary key (execution, budget)
) strict, without rowid;

create index ledger_budget on ledger (budget);

create table charge (
    budget text not null,
    key text not null,
    until integer not null,
    doc blob not null,
    primary key (budget, key)
) strict, without rowid;

create index charge_until on charge (until);

create table reservation (
    id blob primary key check (length(id) = 16),
    execution blob not null check (length(execution) = 16),
    epoch integer not null,
    doc blob not null
) strict, without rowid;

create index reservation_execution on reservation (execution);

-- A lane was paused or not; now it can be drained and has a concurrency.
drop index lane_paused;
alter table lane rename to lane_before;

create table lane (
    name text primary key,
    version integer not null default 0 check (version >= 0),
    state integer not null default 0 check (state between 0 and 2),
    concurrency integer check (concurrency > 0),
    doc blob
) strict, without rowid;

insert into lane (name, version, state, doc)
select name, paused, paused, case paused when 1 then cast('{"state":1}' as blob) end
from lane_before;

drop table lane_before;

-- A claim asks for these first, and most often there are none.
create index lane_limited on lane (name, state, concurrency)
where state <> 0 or concurrency is not null;

-- The queue somebody waits in (parked), or holds a slot of (ready, lease).
alter table ready add column queue integer check (queue >= 0);
create index ready_queue on ready (queue) where queue is not null;

-- What has begun, for lanes that drain.
create index ready_begun on ready (route, rank, id) where start <> 0;

alter table parked add column queue integer check (queue >= 0);
create index parked_queue on parked (queue, rank, id) where queue is not null;
-- Those whose attempt goes on: a rate that is used up does not keep them.
create index parked_continuing on parked (queue, rank, id) where queue is not null and start = 4;

-- The view stands in the way of a new table of the same name.
drop view snapshot;
alter table lease rename to lease_before;

create table lease (
    id blob primary key,
    version integer not null check (version >= 1),
    epoch integer not null check (epoch >= 1),
    rank integer not null,
    flags integer not null check (flags >= 0),
    attempt integer not null check (attempt >= 0),
    start integer not null check (start between 0 and 4),
    life blob,
    claim blob not null check (length(claim) = 16),
    worker integer not null,
    started_at integer not null,
    expires_at integer not null check (expires_at >= started_at),
    times_out_at integer,
    renewed_at integer,
    route integer not null,
    queue integer check (queue >= 0)
) strict, without rowid;

insert into lease (
    id, version, epoch, rank, flags, attempt, start, life,
    claim, worker, started_at, expires_at, times_out_at, renewed_at, route
)
select
    l.id, l.version, l.epoch, l.rank, l.flags, l.attempt, l.start, l.life,
    l.claim, l.worker, l.started_at, l.expires_at, l.times_out_at, l.renewed_at, e.route
from lease_before as l join execution as e on e.id = l.id;

drop table lease_before;

create index lease_queue on lease (queue) where queue is not null;

create view snapshot as
select
    e.id, e.created_at, e.route as exec_route, e.policy, e.facts, e.flow,
    'ready' as place, s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    s.timeout, s.held_until, s.held_for, s.lost,
    null as claim, null as worker, null as started_at,
    null as expires_at, null as times_out_at, null as renewed_at,
    null as gate, null as due_at, null as since, null as note,
    null as outcome, null as ended_at, null as pending, null as result
from ready s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'lease', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, s.expires_at, s.times_out_at, s.renewed_at,
    null, null, null, null,
    null, null, null, null
from lease s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'parked', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    s.timeout, null, null, null,
    null, null, null, null, null, null,
    s.gate, s.due_at, s.since, s.note,
    null, null, null, null
from parked s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'done', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, null, null, null,
    null, null, null, null,
    s.outcome, s.ended_at, s.pending, s.result
from done s join execution e on e.id = s.id;
