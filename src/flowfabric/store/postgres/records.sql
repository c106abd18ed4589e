-- Versioned records: what is asked for by key.

-- name: records
select {key}, version, doc from unnest({arrays}) as given ({key}) join {table} using ({key})

-- name: registry_events
-- Events that belong to no execution have the id that none has.
insert into {schema}.event (id, at, kind, epoch, detail, namespace)
select '00000000-0000-0000-0000-000000000000'::uuid, g.at, g.kind, 0, g.detail, g.namespace
from unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::text[])
    as g (at, kind, detail, namespace)
