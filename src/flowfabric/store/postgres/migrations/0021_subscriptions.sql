-- Events of the worker registry belong to no execution: they say their namespace themselves.
alter table {schema}.event add column namespace text;

-- The highest number of an event that retention has deleted.
create table {schema}.forgotten (
    seq bigint not null,
    one smallint not null,
    constraint forgotten_pkey primary key (one),
    constraint forgotten_one check (one = 1)
);
insert into {schema}.forgotten (one, seq)
select 1, coalesce(min(seq) - 1, 0) from {schema}.event;

-- Named readers of events, each with its cursor.
create table {schema}.subscription (
    version bigint not null,
    name text collate "C" not null,
    namespace text,
    doc bytea not null,
    constraint subscription_pkey primary key (name),
    constraint subscription_version check (version >= 1)
);

-- Readers of events outside: each event is posted to a URL.
create table {schema}.webhook (
    version bigint not null,
    name text collate "C" not null,
    namespace text,
    doc bytea not null,
    constraint webhook_pkey primary key (name),
    constraint webhook_version check (version >= 1)
);
