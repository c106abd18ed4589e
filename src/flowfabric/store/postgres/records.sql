-- Versioned records: what is asked for by key.

-- name: records
select {key}, version, doc from unnest({arrays}) as given ({key}) join {table} using ({key})
