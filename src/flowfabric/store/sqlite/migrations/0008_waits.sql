-- What executions wait for from outside. A waitpoint and a signal are written once; the documents
-- hold everything but what is searched for.
create table waitpoint (
    id blob not null,
    waitpoint blob not null,
    doc blob not null,
    primary key (id, waitpoint)
) strict, without rowid;

-- `suspension` is the one a signal counted for.
create table signal (
    id blob not null,
    number integer not null check (number >= 1),
    waitpoint blob not null,
    suspension blob,
    doc blob not null,
    primary key (id, number)
) strict, without rowid;

-- What is buffered at a waitpoint, and what a wait has heard, without the rest of 10,000 signals.
create index signal_waitpoint on signal (id, waitpoint, number);
create index signal_suspension on signal (id, suspension, number) where suspension is not null;

-- What was seen already: the key is a digest of it.
create table mark (
    id blob not null,
    mark blob not null,
    until integer,
    doc blob not null,
    primary key (id, mark)
) strict, without rowid;

-- The keys that sign tokens: one row.
create table keyring (
    one integer primary key check (one = 1),
    version integer not null check (version >= 1),
    doc blob not null
) strict;

create index parked_since on parked (since, id) where gate = 20;
