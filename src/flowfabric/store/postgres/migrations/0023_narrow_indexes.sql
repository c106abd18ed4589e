-- Two indexes that every execution writes are narrower: executions of one moment and events of one
-- execution are few, and sorted when they are read. The new index is built first, so that reading
-- goes on meanwhile; about a second for each million of rows.
create index execution_created on {schema}.execution (created_at);
drop index {schema}.execution_created_at;
alter index {schema}.execution_created rename to execution_created_at;

create index event_execution on {schema}.event (id);
drop index {schema}.event_id;
alter index {schema}.event_execution rename to event_id;

-- Events of the worker registry share one id, so that they have an order of their own.
create index event_registry on {schema}.event (seq) where id = '00000000-0000-0000-0000-000000000000';
