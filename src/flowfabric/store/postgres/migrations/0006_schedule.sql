-- What is submitted again and again. The document holds everything but what is searched for.
create table {schema}.schedule (
    name text not null,
    version integer not null check (version >= 1),
    next_at bigint,
    doc bytea not null,
    constraint schedule_pkey primary key (name)
);
create index schedule_next on {schema}.schedule (next_at) where next_at is not null;
