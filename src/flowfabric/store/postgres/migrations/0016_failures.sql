-- Failed executions, the latest first: an index of its own, because few of those that end fail.
create index done_failed on {schema}.done (ended_at, id) where outcome = 1;
