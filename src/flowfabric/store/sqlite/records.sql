-- Versioned records: what is asked for by key.

-- name: records
with given ({key}) as (values ({blanks}))
select {key}, version, doc from given cross join {table} using ({key})

-- name: registry_events
-- Events that belong to no execution have the id that none has.
insert or fail into event (id, at, kind, epoch, detail, namespace)
values (zeroblob(16), ?, ?, 0, ?, ?)
