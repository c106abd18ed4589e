-- Which workers are there. Rewritten with every heartbeat, so it is kept small and HOT.
create table {schema}.presence (
    namespace text not null,
    instance text not null,
    expires_at bigint not null,
    doc bytea not null,
    constraint presence_pkey primary key (namespace, instance)
) with (fillfactor = 50);
