-- Tables have the names that the code uses.
alter table chore rename to outbox;

alter table mark rename to dedup_record;
alter table dedup_record rename column mark to key;

alter table arrival rename to inbox;
drop index arrival_order;
create index inbox_order on inbox (at, id);
