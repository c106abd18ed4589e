-- Whether any run is blocked by code is asked for every second.
create index parked_code on {schema}.parked (queue) where gate = 2 and queue is not null;
