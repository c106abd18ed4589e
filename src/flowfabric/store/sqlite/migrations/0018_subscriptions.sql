-- Events of the worker registry belong to no execution: they say their namespace themselves.
alter table event add column namespace text;

-- The highest number of an event that retention has deleted.
create table forgotten (
    one integer primary key check (one = 1),
    seq integer not null
) strict;
insert into forgotten (one, seq) select 1, coalesce(min(seq) - 1, 0) from event;

-- Named readers of events, each with its cursor.
create table subscription (
    name text primary key,
    version integer not null check (version >= 1),
    namespace text,
    doc blob not null
) strict, without rowid;

-- Readers of events outside: each event is posted to a URL.
create table webhook (
    name text primary key,
    version integer not null check (version >= 1),
    namespace text,
    doc blob not null
) strict, without rowid;
