-- Which workers are there.
create table presence (
    namespace text not null,
    instance text not null,
    expires_at integer not null,
    doc blob not null,
    primary key (namespace, instance)
) strict, without rowid;
