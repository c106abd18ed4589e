-- Limits: quotas, the queues before them, budgets and lanes. A slot is a row in `ready` or `lease`
-- with a queue: it is counted, never kept. Names are compared byte by byte, which is what the order
-- of locks needs and what costs least.

create table {schema}.quota (
    version bigint not null,
    name text collate "C" not null,
    doc bytea not null,
    constraint quota_pkey primary key (name),
    constraint quota_version check (version >= 1)
) with (fillfactor = 50);

-- Which queues a quota has, and when each was last served. `key` is the one of that quota.
create table {schema}.queue (
    id bigint not null,
    turn bigint not null default 0,
    quota text collate "C" not null,
    key text collate "C" not null,
    uses bytea not null,
    constraint queue_pkey primary key (quota, id),
    constraint queue_id check (id >= 0)
);

create index queue_number on {schema}.queue (id);
create index queue_key on {schema}.queue (quota, key, id);
create index queue_turn on {schema}.queue (quota, turn, id);

-- How many were let through when: what a rate counts. The key is empty for all of a quota.
create table {schema}.admission (
    at bigint not null,
    count integer not null,
    quota text collate "C" not null,
    key text collate "C" not null,
    constraint admission_count check (count > 0)
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

create index admission_at on {schema}.admission (quota, at);
-- The newest of indexes that look equally good is taken, and for a key that is the only good one.
alter table {schema}.admission add constraint admission_pkey primary key (quota, key, at);

create table {schema}.budget (
    version bigint not null,
    next_reset_at bigint,
    name text collate "C" not null,
    parent text collate "C",
    scope text collate "C",
    scope_id text collate "C",
    doc bytea not null,
    constraint budget_pkey primary key (name),
    constraint budget_version check (version >= 1),
    constraint budget_scope check ((scope is null) = (scope_id is null))
) with (fillfactor = 50);

create index budget_next_reset_at on {schema}.budget (next_reset_at, name)
    where next_reset_at is not null;
create index budget_attached on {schema}.budget (scope, scope_id, name) where scope is not null;

-- What an execution has spent of a budget.
create table {schema}.ledger (
    execution uuid not null,
    budget text collate "C" not null,
    doc bytea not null,
    constraint ledger_pkey primary key (execution, budget)
);

create index ledger_budget on {schema}.ledger (budget);

create table {schema}.charge (
    until bigint not null,
    budget text collate "C" not null,
    key text collate "C" not null,
    doc bytea not null,
    constraint charge_pkey primary key (budget, key)
);

create index charge_until on {schema}.charge (until);

create table {schema}.reservation (
    id uuid not null,
    execution uuid not null,
    epoch integer not null,
    doc bytea not null,
    constraint reservation_pkey primary key (id)
);

create index reservation_execution on {schema}.reservation (execution);

-- A lane was paused or not; now it can be drained and has a concurrency.
alter table {schema}.lane
    add column version bigint not null default 0,
    add column state smallint not null default 0,
    add column concurrency integer,
    add column doc bytea;
update {schema}.lane set version = 1, state = 1, doc = convert_to('{"state":1}', 'UTF8')
where paused;
alter table {schema}.lane
    drop column paused,
    add constraint lane_version check (version >= 0),
    add constraint lane_state check (state between 0 and 2),
    add constraint lane_concurrency check (concurrency >= 1);

-- A claim asks for these, and most often there are none.
create index lane_capped on {schema}.lane (name) where concurrency is not null;

-- The queue somebody waits in (parked), or holds a slot of (ready, lease).
alter table {schema}.ready add column queue bigint;
alter table {schema}.lease add column queue bigint, add column route integer;
alter table {schema}.parked add column queue bigint;
update {schema}.lease l set route = e.route from {schema}.execution e where e.id = l.id;
alter table {schema}.lease alter column route set not null;

create index ready_queue on {schema}.ready (queue) where queue is not null;
create index lease_queue on {schema}.lease (queue) where queue is not null;
create index parked_queue on {schema}.parked (queue, rank, id) where queue is not null;
-- Those whose attempt goes on: a rate that is used up does not keep them.
create index parked_continuing on {schema}.parked (queue, rank, id) where queue is not null and start = 4;
-- What has begun, for lanes that drain.
create index ready_begun on {schema}.ready (route, rank, id) where start <> 0;
