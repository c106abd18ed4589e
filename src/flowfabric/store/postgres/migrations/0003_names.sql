-- What is interned, switched, or held once per database. Numbers are given one after the other
-- and become visible in that order, so the highest known one tells whether any are missing.

create table {schema}.route (
    number integer not null,
    namespace text not null,
    lane text not null,
    kind text not null,
    capabilities text not null,
    constraint route_pkey primary key (number)
);

-- A long list of capabilities does not fit into an index.
create unique index route_name on {schema}.route
    (namespace, lane, kind, hashtextextended(capabilities, 0));
create index route_lane on {schema}.route (lane);

create table {schema}.worker (
    number integer not null,
    id text not null,
    instance text not null,
    constraint worker_pkey primary key (number)
);

create unique index worker_name on {schema}.worker (id, instance);
create index worker_instance on {schema}.worker (instance);

create table {schema}.lane (
    name text not null,
    paused boolean not null,
    constraint lane_pkey primary key (name)
);

create table {schema}.duty (
    until bigint not null,
    name text not null,
    holder text not null,
    constraint duty_pkey primary key (name)
);
