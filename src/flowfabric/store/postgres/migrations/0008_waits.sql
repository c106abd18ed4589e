-- What executions wait for from outside. A waitpoint and a signal are written once; the documents
-- hold everything but what is searched for.
create table {schema}.waitpoint (
    id uuid not null,
    waitpoint uuid not null,
    doc bytea not null,
    constraint waitpoint_pkey primary key (id, waitpoint)
);

-- `suspension` is the one a signal counted for.
create table {schema}.signal (
    id uuid not null,
    waitpoint uuid not null,
    suspension uuid,
    number integer not null,
    doc bytea not null,
    constraint signal_number check (number >= 1)
);

-- What is buffered at a waitpoint, and what a wait has heard, without the rest of 10,000 signals.
create index signal_waitpoint on {schema}.signal (id, waitpoint, number);
create index signal_suspension on {schema}.signal (id, suspension, number)
where suspension is not null;
-- Of indexes that look equally good, as they do while most executions have one signal, the planner
-- takes the newest: this one reads no more of the others than it must.
alter table {schema}.signal add constraint signal_pkey primary key (id, number);

-- What was seen already: the key is a digest of it.
create table {schema}.mark (
    until bigint,
    id uuid not null,
    mark bytea not null,
    doc bytea not null,
    constraint mark_pkey primary key (id, mark)
);

-- The keys that sign tokens: one row.
create table {schema}.keyring (
    one smallint not null,
    version integer not null,
    doc bytea not null,
    constraint keyring_pkey primary key (one),
    constraint keyring_one check (one = 1),
    constraint keyring_version check (version >= 1)
);

create index parked_since on {schema}.parked (since, id) where gate = 20;
