-- What an execution leaves behind while it moves.

create table attempt (
    id blob not null,
    "index" integer not null check ("index" >= 0),
    doc blob not null,
    primary key (id, "index")
) strict, without rowid;

create table step (
    id blob not null,
    generation integer not null check (generation >= 0),
    name text not null,
    occurrence integer not null check (occurrence >= 0),
    position integer not null,
    doc blob not null,
    primary key (id, generation, name, occurrence)
) strict, without rowid;

create table progress (
    id blob primary key,
    percent integer,
    message text,
    at integer not null
) strict, without rowid;

-- A number is never used twice, even when the newest events have been deleted.
create table event (
    seq integer primary key autoincrement,
    id blob not null,
    at integer not null,
    kind integer not null check (kind > 0),
    epoch integer not null check (epoch >= 0),
    attempt integer,
    worker integer,
    detail blob
) strict;

create index event_id on event (id, seq);
