-- Who may call the server. The document has the hash of a token, never the token.
create table {schema}.access_token (
    name text collate "C" not null,
    version integer not null,
    doc bytea not null,
    constraint access_token_pkey primary key (name),
    constraint access_token_version check (version >= 1)
);

-- Administrative acts that belong to no execution, by version 7 uuids and so in the order of time.
create table {schema}.audit (
    id text collate "C" not null,
    version integer not null,
    kept_until bigint not null,
    doc bytea not null,
    constraint audit_pkey primary key (id),
    constraint audit_version check (version >= 1)
);
create index audit_kept on {schema}.audit (kept_until);
