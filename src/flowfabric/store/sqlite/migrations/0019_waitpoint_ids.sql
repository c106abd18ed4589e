-- No two executions have the same waitpoint. Only those that belong to an attempt can clash: their
-- ids may be a caller's own. Those that outlive attempts are named after their execution, and need
-- no index.
alter table waitpoint add column attempt integer;
create unique index waitpoint_of_attempt on waitpoint (waitpoint) where attempt is not null;
