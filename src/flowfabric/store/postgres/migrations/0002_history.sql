-- What an execution leaves behind while it moves.

create table {schema}.attempt (
    id uuid not null,
    index integer not null,
    doc bytea not null,
    constraint attempt_pkey primary key (id, index),
    constraint attempt_index check (index >= 0)
);

create table {schema}.step (
    id uuid not null,
    generation integer not null,
    occurrence integer not null,
    position integer not null,
    name text not null,
    doc bytea not null,
    constraint step_pkey primary key (id, generation, name, occurrence),
    constraint step_generation check (generation >= 0),
    constraint step_occurrence check (occurrence >= 0)
);

create table {schema}.progress (
    at bigint not null,
    id uuid not null,
    percent integer,
    message text,
    constraint progress_pkey primary key (id)
);

-- Whoever writes here draws `seq` while it holds the table's lock: readers rely on it.
create table {schema}.event (
    seq bigint generated always as identity,
    at bigint not null,
    id uuid not null,
    epoch integer not null,
    worker integer,
    attempt integer,
    kind smallint not null,
    detail bytea,
    constraint event_pkey primary key (seq),
    constraint event_kind check (kind > 0),
    constraint event_epoch check (epoch >= 0)
);

create index event_id on {schema}.event (id, seq);
