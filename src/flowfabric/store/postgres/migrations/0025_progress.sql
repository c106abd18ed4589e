-- Each attempt keeps what it has reported, also when a later one reports.
alter table {schema}.progress
    drop constraint progress_pkey, add constraint progress_pkey primary key (id, attempt);
