-- What attempts write while they run. A header says how far a stream has come; frames go out of order
-- of age, each mode by itself, so the newest of a mode that is gone is remembered.

create table stream (
    id blob not null,
    attempt integer not null check (attempt >= 0),
    version integer not null check (version >= 1),
    doc blob not null,
    summary blob,
    expires_at integer,
    primary key (id, attempt)
) strict, without rowid;

create index stream_expires_at on stream (expires_at) where expires_at is not null;

create table frame (
    id blob not null,
    attempt integer not null,
    ms integer not null,
    seq integer not null check (seq >= 1),
    mode integer not null check (mode between 0 and 2),
    number integer not null,
    head blob not null,
    payload blob not null
) strict;

create unique index frame_id on frame (id, attempt, ms, seq);

create table frame_gap (
    id blob not null,
    attempt integer not null,
    mode integer not null check (mode between 0 and 2),
    ms integer not null,
    seq integer not null,
    primary key (id, attempt, mode)
) strict, without rowid;
