-- Tables have the names that the code uses.
alter table chore rename to flow_outbox;

alter table mark rename to dedup_record;
alter table dedup_record rename column mark to key;

alter table arrival rename to submission_inbox;
drop index arrival_order;
create index submission_inbox_order on submission_inbox (at, id);
