-- Tables that work passes through: their dead rows are cleared away before they are many.
alter table {schema}.parked set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
alter table {schema}.arrival set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
alter table {schema}.deadline set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

-- Gives back the disk of tables that are empty and larger than `min_bytes`: vacuum cuts a table
-- only at its end and an index never. Waits for nobody: a table that is in use stays as it is.
create function {schema}.shrink(tables text[], min_bytes bigint) returns setof text
language plpgsql as $$
declare
    name text;
    filled boolean;
begin
    foreach name in array tables loop
        continue when pg_total_relation_size(format('{schema}.%I', name)::regclass) <= min_bytes;
        begin
            execute format('select exists (select from {schema}.%I)', name) into filled;
            continue when filled;
            execute format('lock table {schema}.%I in access exclusive mode nowait', name);
            -- Again: somebody may have written before the lock was there.
            execute format('select exists (select from {schema}.%I)', name) into filled;
            continue when filled;
            execute format('truncate table {schema}.%I', name);
            return next name;
        exception when lock_not_available or insufficient_privilege then
            null;
        end;
    end loop;
end
$$;
