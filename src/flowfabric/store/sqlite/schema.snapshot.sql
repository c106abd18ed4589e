CREATE TABLE execution (
    id blob primary key check (length(id) = 16),
    created_at integer not null,
    route integer not null,
    policy blob,
    facts blob,
    flow blob,
    payload blob not null
) strict, without rowid;

CREATE INDEX execution_created_at on execution (created_at, id);

CREATE TABLE ready (
    id blob not null,
    version integer not null check (version >= 1),
    epoch integer not null check (epoch >= 0),
    rank integer not null,
    flags integer not null check (flags >= 0),
    attempt integer not null check (attempt >= 0),
    start integer not null check (start between 0 and 4),
    life blob,
    route integer not null,
    timeout integer check (timeout > 0),
    held_until integer not null,
    held_for text,
    lost integer check (lost in (0, 1)), queue integer check (queue >= 0),
    primary key (route, rank, id),
    check (held_until > 0 or held_for is null),
    check (lost is null or start = 3)
) strict, without rowid;

CREATE UNIQUE INDEX ready_id on ready (id);

CREATE INDEX ready_lost on ready (id) where lost is not null;

CREATE TABLE parked (
    id blob primary key,
    version integer not null check (version >= 1),
    epoch integer not null check (epoch >= 0),
    rank integer not null,
    flags integer not null check (flags >= 0),
    attempt integer not null check (attempt >= 0),
    start integer not null check (start between 0 and 4),
    life blob,
    timeout integer check (timeout > 0),
    gate integer not null check (gate between 0 and 9 or gate = 20),
    due_at integer,
    since integer,
    note blob, queue integer check (queue >= 0),
    check ((gate = 20) = (note is not null) and (gate = 20) = (since is not null))
) strict, without rowid;

CREATE INDEX parked_due_at on parked (due_at) where due_at is not null;

CREATE TABLE done (
    id blob primary key,
    version integer not null check (version >= 1),
    epoch integer not null check (epoch >= 0),
    rank integer not null,
    flags integer not null check (flags >= 0),
    attempt integer check (attempt >= 0),
    start integer not null check (start between 0 and 4),
    life blob,
    outcome integer not null check (outcome between 0 and 4),
    ended_at integer not null,
    pending integer check (pending between 0 and 4),
    claim blob,
    worker integer,
    started_at integer,
    result blob,
    trim_at integer,
    check ((claim is null) = (worker is null) and (claim is null) = (started_at is null))
) strict, without rowid;

CREATE INDEX done_ended_at on done (outcome, ended_at, trim_at);

CREATE INDEX done_trim_at on done (trim_at) where trim_at is not null;

CREATE TABLE deadline (
    id blob primary key,
    at integer not null
) strict, without rowid;

CREATE INDEX deadline_at on deadline (at);

CREATE TABLE dedup (
    namespace text not null,
    key text not null,
    id blob not null,
    until integer not null,
    primary key (namespace, key)
) strict, without rowid;

CREATE INDEX dedup_until on dedup (until);

CREATE TABLE tag (
    id blob not null,
    key text not null,
    value text not null,
    at integer not null,
    primary key (id, key)
) strict, without rowid;

CREATE INDEX tag_value on tag (key, value, id);

CREATE TABLE attempt (
    id blob not null,
    "index" integer not null check ("index" >= 0),
    doc blob not null,
    primary key (id, "index")
) strict, without rowid;

CREATE TABLE step (
    id blob not null,
    generation integer not null check (generation >= 0),
    name text not null,
    occurrence integer not null check (occurrence >= 0),
    position integer not null,
    doc blob not null,
    primary key (id, generation, name, occurrence)
) strict, without rowid;

CREATE TABLE event (
    seq integer primary key autoincrement,
    id blob not null,
    at integer not null,
    kind integer not null check (kind > 0),
    epoch integer not null check (epoch >= 0),
    attempt integer,
    worker integer,
    detail blob
, namespace text) strict;

CREATE INDEX event_id on event (id, seq);

CREATE TABLE route (
    number integer primary key,
    namespace text not null,
    lane text not null,
    kind text not null,
    capabilities text not null,
    unique (namespace, lane, kind, capabilities)
) strict;

CREATE TABLE worker (
    number integer primary key,
    id text not null,
    instance text not null,
    seen_at integer,
    doc blob,
    unique (id, instance)
) strict;

CREATE TABLE duty (
    name text primary key,
    holder text not null,
    until integer not null
) strict, without rowid;

CREATE TABLE meta (
    key text primary key,
    value blob not null
) strict, without rowid;

CREATE TABLE "submission_inbox" (
    id blob primary key check (length(id) = 16),
    at integer not null,
    kind text not null check (length(kind) between 1 and 256),
    namespace text not null check (length(namespace) between 1 and 256),
    lane text not null check (length(lane) between 1 and 64),
    options blob not null,
    payload blob not null
) strict, without rowid;

CREATE TABLE schedule (
    name text primary key,
    version integer not null check (version >= 1),
    next_at integer,
    doc blob not null
) strict, without rowid;

CREATE INDEX schedule_next on schedule (next_at) where next_at is not null;

CREATE TABLE presence (
    namespace text not null,
    instance text not null,
    expires_at integer not null,
    doc blob not null, version integer not null default 1 check (version >= 1),
    primary key (namespace, instance)
) strict, without rowid;

CREATE TABLE waitpoint (
    id blob not null,
    waitpoint blob not null,
    doc blob not null, attempt integer,
    primary key (id, waitpoint)
) strict, without rowid;

CREATE TABLE signal (
    id blob not null,
    number integer not null check (number >= 1),
    waitpoint blob not null,
    suspension blob,
    doc blob not null,
    primary key (id, number)
) strict, without rowid;

CREATE INDEX signal_waitpoint on signal (id, waitpoint, number);

CREATE INDEX signal_suspension on signal (id, suspension, number) where suspension is not null;

CREATE TABLE "dedup_record" (
    id blob not null,
    key blob not null,
    until integer,
    doc blob not null,
    primary key (id, key)
) strict, without rowid;

CREATE TABLE keyring (
    one integer primary key check (one = 1),
    version integer not null check (version >= 1),
    doc blob not null
) strict;

CREATE INDEX parked_since on parked (since, id) where gate = 20;

CREATE TABLE flow (
    id blob primary key check (length(id) = 16),
    version integer not null check (version >= 1),
    namespace text not null,
    kind text not null,
    state text not null,
    created_at integer not null,
    ended_at integer,
    doc blob not null
) strict, without rowid;

CREATE INDEX flow_created_at on flow (created_at, id);

CREATE INDEX flow_ended_at on flow (ended_at) where ended_at is not null;

CREATE TABLE flow_tag (
    id blob not null,
    key text not null,
    value text not null,
    primary key (id, key)
) strict, without rowid;

CREATE INDEX flow_tag_value on flow_tag (key, value, id);

CREATE TABLE edge (
    flow blob not null,
    id blob not null,
    upstream blob not null,
    downstream blob not null,
    outcome integer check (outcome between 0 and 4),
    doc blob not null,
    primary key (flow, id)
) strict, without rowid;

CREATE INDEX edge_upstream on edge (flow, upstream, id);

CREATE INDEX edge_unsettled on edge (flow, upstream, id) where outcome is null;

CREATE INDEX edge_downstream on edge (flow, downstream, id);

CREATE TABLE "flow_outbox" (
    flow blob not null,
    id blob not null,
    number integer not null,
    kind integer not null check (kind > 0),
    outcome integer check (outcome between 0 and 4),
    spared integer not null check (spared in (0, 1)),
    primary key (flow, id, number, kind)
) strict, without rowid;

CREATE INDEX execution_flow on execution (flow, id) where flow is not null;

CREATE TABLE quota (
    name text primary key,
    version integer not null check (version >= 1),
    doc blob not null
) strict, without rowid;

CREATE TABLE queue (
    quota text not null,
    id integer not null check (id >= 0),
    turn integer not null default 0,
    uses blob not null, key text not null default '',
    primary key (quota, id)
) strict, without rowid;

CREATE INDEX queue_turn on queue (quota, turn, id);

CREATE INDEX queue_id on queue (id);

CREATE TABLE admission (
    quota text not null,
    key text not null,
    at integer not null,
    count integer not null check (count > 0),
    primary key (quota, key, at)
) strict, without rowid;

CREATE INDEX admission_at on admission (quota, at);

CREATE TABLE budget (
    name text primary key,
    version integer not null check (version >= 1),
    parent text,
    scope text,
    scope_id text,
    next_reset_at integer,
    doc blob not null,
    check ((scope is null) = (scope_id is null))
) strict, without rowid;

CREATE INDEX budget_next_reset_at on budget (next_reset_at, name) where next_reset_at is not null;

CREATE INDEX budget_scope on budget (scope, scope_id, name) where scope is not null;

CREATE TABLE ledger (
    budget text not null,
    execution blob not null check (length(execution) = 16),
    doc blob not null,
    primary key (execution, budget)
) strict, without rowid;

CREATE INDEX ledger_budget on ledger (budget);

CREATE TABLE charge (
    budget text not null,
    key text not null,
    until integer not null,
    doc blob not null,
    primary key (budget, key)
) strict, without rowid;

CREATE INDEX charge_until on charge (until);

CREATE TABLE reservation (
    id blob primary key check (length(id) = 16),
    execution blob not null check (length(execution) = 16),
    epoch integer not null,
    doc blob not null
) strict, without rowid;

CREATE INDEX reservation_execution on reservation (execution);

CREATE TABLE lane (
    name text primary key,
    version integer not null default 0 check (version >= 0),
    state integer not null default 0 check (state between 0 and 2),
    concurrency integer check (concurrency > 0),
    doc blob
) strict, without rowid;

CREATE INDEX lane_limited on lane (name, state, concurrency)
where state <> 0 or concurrency is not null;

CREATE INDEX ready_queue on ready (queue) where queue is not null;

CREATE INDEX ready_begun on ready (route, rank, id) where start <> 0;

CREATE INDEX parked_queue on parked (queue, rank, id) where queue is not null;

CREATE INDEX parked_continuing on parked (queue, rank, id) where queue is not null and start = 4;

CREATE TABLE lease (
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

CREATE INDEX lease_queue on lease (queue) where queue is not null;

CREATE VIEW snapshot as
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

CREATE INDEX ready_suspect on ready (route, rank, id) where flags & 64 <> 0;

CREATE INDEX parked_code on parked (queue) where gate = 2 and queue is not null;

CREATE INDEX queue_key on queue (quota, key, id);

CREATE TABLE stream (
    id blob not null,
    attempt integer not null check (attempt >= 0),
    version integer not null check (version >= 1),
    doc blob not null,
    summary blob,
    expires_at integer,
    primary key (id, attempt)
) strict, without rowid;

CREATE INDEX stream_expires_at on stream (expires_at) where expires_at is not null;

CREATE TABLE frame (
    id blob not null,
    attempt integer not null,
    ms integer not null,
    seq integer not null check (seq >= 1),
    mode integer not null check (mode between 0 and 2),
    number integer not null,
    head blob not null,
    payload blob not null
) strict;

CREATE UNIQUE INDEX frame_id on frame (id, attempt, ms, seq);

CREATE TABLE frame_gap (
    id blob not null,
    attempt integer not null,
    mode integer not null check (mode between 0 and 2),
    ms integer not null,
    seq integer not null,
    primary key (id, attempt, mode)
) strict, without rowid;

CREATE TABLE access_token (
    name text primary key,
    version integer not null check (version >= 1),
    doc blob not null
) strict, without rowid;

CREATE TABLE audit (
    id text primary key,
    version integer not null check (version >= 1),
    kept_until integer not null,
    doc blob not null
) strict, without rowid;

CREATE INDEX audit_kept on audit (kept_until);

CREATE TABLE forgotten (
    one integer primary key check (one = 1),
    seq integer not null
) strict;

CREATE TABLE subscription (
    name text primary key,
    version integer not null check (version >= 1),
    namespace text,
    doc blob not null
) strict, without rowid;

CREATE TABLE webhook (
    name text primary key,
    version integer not null check (version >= 1),
    namespace text,
    doc blob not null
) strict, without rowid;

CREATE UNIQUE INDEX waitpoint_of_attempt on waitpoint (waitpoint) where attempt is not null;

CREATE TABLE progress (
    id blob not null,
    attempt integer not null check (attempt >= 0),
    percent integer,
    message text,
    state_value blob,
    at integer not null,
    primary key (id, attempt)
) strict, without rowid;

CREATE INDEX submission_inbox_order on submission_inbox (at, id);
