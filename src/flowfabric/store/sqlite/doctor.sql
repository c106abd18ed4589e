-- What a doctor wants to know of a file.

-- name: schema_objects
select name, sql from sqlite_master where sql is not null

-- name: mend_dropped_index
-- Printed, never run.
drop index if exists {name}
