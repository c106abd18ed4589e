-- What attempts write while they run. A header says how far a stream has come; frames go out of order
-- of age, each mode by itself, so the newest of a mode that is gone is remembered.

create table {schema}.stream (
    expires_at bigint,
    id uuid not null,
    attempt integer not null,
    version integer not null,
    doc bytea not null,
    summary bytea,
    constraint stream_pkey primary key (id, attempt),
    constraint stream_attempt check (attempt >= 0),
    constraint stream_version check (version >= 1)
) with (fillfactor = 70);

create index stream_expires_at on {schema}.stream (expires_at) where expires_at is not null;

create table {schema}.frame (
    ms bigint not null,
    seq bigint not null,
    number bigint not null,
    id uuid not null,
    attempt integer not null,
    mode smallint not null,
    head bytea not null,
    payload bytea not null,
    constraint frame_pkey primary key (id, attempt, ms, seq),
    constraint frame_seq check (seq >= 1),
    constraint frame_mode check (mode between 0 and 2)
);

create table {schema}.frame_gap (
    ms bigint not null,
    seq bigint not null,
    id uuid not null,
    attempt integer not null,
    mode smallint not null,
    constraint frame_gap_pkey primary key (id, attempt, mode),
    constraint frame_gap_mode check (mode between 0 and 2)
);
