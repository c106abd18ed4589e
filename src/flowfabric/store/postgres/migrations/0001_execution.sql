-- What never changes is written once; a transition moves a small row between the four state
-- tables. Columns stand in the order that wastes no space on alignment.

create table {schema}.meta (
    key text not null,
    value bytea not null,
    constraint meta_pkey primary key (key)
);

create table {schema}.execution (
    created_at bigint not null,
    id uuid not null,
    flow uuid,
    route integer not null,
    policy bytea,
    facts bytea,
    payload bytea not null,
    constraint execution_pkey primary key (id)
);

create index execution_created_at on {schema}.execution (created_at, id);

-- Everything a claim may take, lost executions included. Rows live for moments only: vacuum
-- follows the number of dead rows and never pauses.
create table {schema}.ready (
    rank bigint not null,
    timeout bigint,
    held_until bigint not null,
    id uuid not null,
    route integer not null,
    version integer not null,
    epoch integer not null,
    attempt integer not null,
    flags smallint not null,
    start smallint not null,
    lost smallint,
    life bytea,
    held_for text,
    constraint ready_version check (version >= 1),
    constraint ready_epoch check (epoch >= 0),
    constraint ready_attempt check (attempt >= 0),
    constraint ready_start check (start between 0 and 4),
    constraint ready_hold check (held_until > 0 or held_for is null),
    constraint ready_lost check (lost is null or (lost in (0, 1) and start = 3))
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

create unique index ready_id on {schema}.ready (id);
create index ready_rank on {schema}.ready (route, rank, id);
create index ready_lost_id on {schema}.ready (id) where lost is not null;

-- One narrow row per running attempt. Nothing that a renewal changes is indexed, and pages have
-- room, so that renewing touches no index.
create table {schema}.lease (
    rank bigint not null,
    started_at bigint not null,
    expires_at bigint not null,
    times_out_at bigint,
    renewed_at bigint,
    id uuid not null,
    claim uuid not null,
    worker integer not null,
    version integer not null,
    epoch integer not null,
    attempt integer not null,
    flags smallint not null,
    start smallint not null,
    life bytea,
    constraint lease_pkey primary key (id),
    constraint lease_version check (version >= 1),
    constraint lease_epoch check (epoch >= 1),
    constraint lease_attempt check (attempt >= 0),
    constraint lease_start check (start between 0 and 4),
    constraint lease_expires_at check (expires_at >= started_at)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

create table {schema}.parked (
    rank bigint not null,
    timeout bigint,
    due_at bigint,
    since bigint,
    id uuid not null,
    version integer not null,
    epoch integer not null,
    attempt integer not null,
    flags smallint not null,
    start smallint not null,
    gate smallint not null,
    life bytea,
    note bytea,
    constraint parked_pkey primary key (id),
    constraint parked_version check (version >= 1),
    constraint parked_epoch check (epoch >= 0),
    constraint parked_attempt check (attempt >= 0),
    constraint parked_start check (start between 0 and 4),
    constraint parked_gate check (gate between 0 and 9 or gate = 20),
    constraint parked_suspended check (
        (gate = 20) = (note is not null) and (gate = 20) = (since is not null)
    )
);

create index parked_due_at on {schema}.parked (due_at) where due_at is not null;

create table {schema}.done (
    rank bigint not null,
    ended_at bigint not null,
    started_at bigint,
    trim_at bigint,
    id uuid not null,
    claim uuid,
    worker integer,
    version integer not null,
    epoch integer not null,
    attempt integer,
    flags smallint not null,
    start smallint not null,
    outcome smallint not null,
    pending smallint,
    life bytea,
    result bytea,
    constraint done_pkey primary key (id),
    constraint done_version check (version >= 1),
    constraint done_epoch check (epoch >= 0),
    constraint done_attempt check (attempt >= 0),
    constraint done_start check (start between 0 and 4),
    constraint done_outcome check (outcome between 0 and 4),
    constraint done_pending check (pending between 0 and 4),
    constraint done_lease check (
        (claim is null) = (worker is null) and (claim is null) = (started_at is null)
    )
);

create index done_ended_at on {schema}.done using brin (ended_at) with (autosummarize = on);
create index done_trim_at on {schema}.done (trim_at) where trim_at is not null;
-- Rare endings can be counted without reading the successes.
create index done_outcome on {schema}.done (outcome) where outcome <> 0;

-- Deadlines stand here only, whatever the state.
create table {schema}.deadline (
    at bigint not null,
    id uuid not null,
    constraint deadline_pkey primary key (id)
);

create index deadline_at on {schema}.deadline (at);

create table {schema}.dedup (
    until bigint not null,
    id uuid not null,
    namespace text not null,
    key text not null,
    constraint dedup_pkey primary key (namespace, key)
);

create index dedup_until on {schema}.dedup (until);

create table {schema}.tag (
    at bigint not null,
    id uuid not null,
    key text not null,
    value text not null,
    constraint tag_pkey primary key (id, key)
);
