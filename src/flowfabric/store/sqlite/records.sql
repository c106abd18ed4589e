-- Versioned records: what is asked for by key.

-- name: records
with given ({key}) as (values ({blanks}))
select {key}, version, doc from given cross join {table} using ({key})
