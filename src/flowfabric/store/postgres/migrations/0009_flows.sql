-- Flows. The document holds everything; the columns are what is searched for. `stamp` names the
-- write that made the row what it is, so that whoever lost the reply recognises its own.
create table {schema}.flow (
    created_at bigint not null,
    ended_at bigint,
    id uuid not null,
    stamp uuid not null,
    version integer not null,
    namespace text not null,
    kind text not null,
    state text not null,
    doc bytea not null,
    constraint flow_pkey primary key (id),
    constraint flow_version check (version >= 1)
) with (fillfactor = 50);

create index flow_created_at on {schema}.flow (created_at, id);
create index flow_ended_at on {schema}.flow (ended_at) where ended_at is not null;

create table {schema}.flow_tag (
    id uuid not null,
    key text not null,
    value text not null,
    constraint flow_tag_pkey primary key (id, key)
);

create index flow_tag_value on {schema}.flow_tag (key, value, id);

-- Who depends on whom. `outcome` is how the upstream ended, once that was counted.
create table {schema}.edge (
    flow uuid not null,
    id uuid not null,
    upstream uuid not null,
    downstream uuid not null,
    outcome smallint,
    doc bytea not null,
    constraint edge_outcome check (outcome between 0 and 4)
);

create index edge_downstream on {schema}.edge (flow, downstream, id);
create index edge_upstream on {schema}.edge (flow, upstream, id);
create index edge_unsettled on {schema}.edge (flow, upstream, id) where outcome is null;
-- Of indexes that look equally good, as they do while the table is empty, the planner takes the
-- newest: for an id that is the only good one.
alter table {schema}.edge add constraint edge_pkey primary key (flow, id);

-- What is owed to a flow: written with the change that causes it, and soon deleted.
create table {schema}.chore (
    flow uuid not null,
    id uuid not null,
    number integer not null,
    kind smallint not null,
    outcome smallint,
    spared boolean not null,
    constraint chore_pkey primary key (flow, id, number, kind),
    constraint chore_kind check (kind > 0),
    constraint chore_outcome check (outcome between 0 and 4)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

create index execution_flow on {schema}.execution (flow, id) where flow is not null;
