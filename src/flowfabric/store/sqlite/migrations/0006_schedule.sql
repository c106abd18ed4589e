-- What is submitted again and again. The document holds everything but what is searched for.
create table schedule (
    name text primary key,
    version integer not null check (version >= 1),
    next_at integer,
    doc blob not null
) strict, without rowid;
create index schedule_next on schedule (next_at) where next_at is not null;
