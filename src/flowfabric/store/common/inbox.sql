-- Submissions that were inserted by the application's own transaction.

-- name: inbox
select id, at, kind, namespace, lane, options, payload
from {schema}.submission_inbox order by at, id limit $1
