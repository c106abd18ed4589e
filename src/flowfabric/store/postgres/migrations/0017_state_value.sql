-- What a handler shows of itself: the last value of ctx.set_state, whichever attempt has set it.
alter table {schema}.progress add column state_value bytea;
