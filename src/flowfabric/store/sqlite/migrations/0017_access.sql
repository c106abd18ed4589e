-- Who may call the server. The document has the hash of a token, never the token.
create table access_token (
    name text primary key,
    version integer not null check (version >= 1),
    doc blob not null
) strict, without rowid;

-- Administrative acts that belong to no execution, by version 7 uuids and so in the order of time.
create table audit (
    id text primary key,
    version integer not null check (version >= 1),
    kept_until integer not null,
    doc blob not null
) strict, without rowid;

create index audit_kept on audit (kept_until);
