-- Reading executions one by one.

-- name: attempts_of
select doc from {schema}.attempt where id = $1 order by "index"
