-- What never changes is written once; a transition moves a small row between the four state
-- tables, whose first eight columns are the head that all of them share.

create table execution (
    id blob primary key check (length(id) = 16),
    created_at integer not null,
    route integer not null,
    policy blob,
    facts blob,
    flow blob,
    payload blob not null
) strict, without rowid;

create index execution_created_at on execution (created_at, id);

-- The key is the order of claims, so that a claim reads neighbours.
create table ready (
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
    lost integer check (lost in (0, 1)),
    primary key (route, rank, id),
    check (held_until > 0 or held_for is null),
    check (lost is null or start = 3)
) strict, without rowid;

create unique index ready_id on ready (id);
create index ready_lost on ready (id) where lost is not null;

-- Few rows, renewed in place: what ran out is found by looking at all of them.
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
    renewed_at integer
) strict, without rowid;

create table parked (
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
    note blob,
    check ((gate = 20) = (note is not null) and (gate = 20) = (since is not null))
) strict, without rowid;

create index parked_due_at on parked (due_at) where due_at is not null;

create table done (
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

-- By outcome first, so that endings of one kind can be counted without the others.
create index done_ended_at on done (outcome, ended_at, trim_at);
create index done_trim_at on done (trim_at) where trim_at is not null;

create table deadline (
    id blob primary key,
    at integer not null
) strict, without rowid;

create index deadline_at on deadline (at);

create table dedup (
    namespace text not null,
    key text not null,
    id blob not null,
    until integer not null,
    primary key (namespace, key)
) strict, without rowid;

create index dedup_until on dedup (until);

create table tag (
    id blob not null,
    key text not null,
    value text not null,
    at integer not null,
    primary key (id, key)
) strict, without rowid;

create index tag_value on tag (key, value, id);
