-- An edge is written twice: when it is made, and with the outcome of its upstream. Without an index
-- that asks for the outcome, the second write touches no index and stays in the page of the first,
-- which keeps room for it. A look for the open edges of a member passes over its settled ones.
drop index {schema}.edge_unsettled;
alter table {schema}.edge set (fillfactor = 70);
