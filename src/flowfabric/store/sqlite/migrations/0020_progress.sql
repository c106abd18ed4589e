-- Each attempt keeps what it has reported, also when a later one reports.
alter table progress rename to progress_of_run;
create table progress (
    id blob not null,
    attempt integer not null check (attempt >= 0),
    percent integer,
    message text,
    state_value blob,
    at integer not null,
    primary key (id, attempt)
) strict, without rowid;
insert into progress (id, attempt, percent, message, state_value, at)
select id, attempt, percent, message, state_value, at from progress_of_run;
drop table progress_of_run;
