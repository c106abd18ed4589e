-- Submissions made inside somebody else's transaction. They are written, not decided: the engine's
-- door turns each into an execution (or ends it as failed with the reason).
create table arrival (
    id blob primary key check (length(id) = 16),
    at integer not null,
    kind text not null check (length(kind) between 1 and 256),
    namespace text not null check (length(namespace) between 1 and 256),
    lane text not null check (length(lane) between 1 and 64),
    options blob not null,
    payload blob not null
) strict, without rowid;
create index arrival_order on arrival (at, id);
