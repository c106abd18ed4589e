-- Counts the hints, for processes that cannot listen for them. Drawn after the commit that a hint is
-- about, by the statement that sends it.
create sequence {schema}.hint_seq;
