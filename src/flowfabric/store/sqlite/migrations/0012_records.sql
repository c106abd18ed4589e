-- An entry of the registry is compared by its version, as every record is.
alter table presence add column version integer not null default 1 check (version >= 1);
