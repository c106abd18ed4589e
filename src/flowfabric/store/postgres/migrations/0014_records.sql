-- An entry of the registry is compared by its version, as every record is. Entries and schedules are
-- listed byte by byte, so that lists have the same order on every server.
alter table {schema}.presence
    add column version bigint not null default 1,
    add constraint presence_version check (version >= 1),
    alter column namespace type text collate "C",
    alter column instance type text collate "C";
alter table {schema}.schedule alter column name type text collate "C";
