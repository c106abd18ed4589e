-- Flows. The document holds everything; the columns are what is searched for.
create table flow (
    id blob primary key check (length(id) = 16),
    version integer not null check (version >= 1),
    namespace text not null,
    kind text not null,
    state text not null,
    created_at integer not null,
    ended_at integer,
    doc blob not null
) strict, without rowid;

create index flow_created_at on flow (created_at, id);
create index flow_ended_at on flow (ended_at) where ended_at is not null;

create table flow_tag (
    id blob not null,
    key text not null,
    value text not null,
    primary key (id, key)
) strict, without rowid;

create index flow_tag_value on flow_tag (key, value, id);

-- Who depends on whom. `outcome` is how the upstream ended, once that was counted.
create table edge (
    flow blob not null,
    id blob not null,
    upstream blob not null,
    downstream blob not null,
    outcome integer check (outcome between 0 and 4),
    doc blob not null,
    primary key (flow, id)
) strict, without rowid;

create index edge_upstream on edge (flow, upstream, id);
create index edge_unsettled on edge (flow, upstream, id) where outcome is null;
create index edge_downstream on edge (flow, downstream, id);

-- What is owed to a flow: written with the change that causes it.
create table chore (
    flow blob not null,
    id blob not null,
    number integer not null,
    kind integer not null check (kind > 0),
    outcome integer check (outcome between 0 and 4),
    spared integer not null check (spared in (0, 1)),
    primary key (flow, id, number, kind)
) strict, without rowid;

create index execution_flow on execution (flow, id) where flow is not null;
