-- What is interned, switched, or held once per database.

-- A worker claims by kind as well; with the kind in the route, work of other kinds is in nobody's
-- way.
create table route (
    number integer primary key,
    namespace text not null,
    lane text not null,
    kind text not null,
    capabilities text not null,
    unique (namespace, lane, kind, capabilities)
) strict;

create table lane (
    name text primary key,
    paused integer not null check (paused in (0, 1))
) strict, without rowid;

create index lane_paused on lane (name) where paused = 1;

create table worker (
    number integer primary key,
    id text not null,
    instance text not null,
    seen_at integer,
    doc blob,
    unique (id, instance)
) strict;

create table duty (
    name text primary key,
    holder text not null,
    until integer not null
) strict, without rowid;

create table meta (
    key text primary key,
    value blob not null
) strict, without rowid;
