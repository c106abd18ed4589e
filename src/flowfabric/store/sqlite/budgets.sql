-- Budgets and what was spent of them.

-- name: budgets
-- Those named, with all they are part of.
with recursive wanted (name) as (
    select value from json_each(:names)
    union
    select b.parent from wanted as w cross join budget as b on b.name = w.name
    where b.parent is not null
)
select b.name, b.version, b.doc from wanted as w cross join budget as b on b.name = w.name

-- name: charges
with given (budget, key) as (values (?, ?))
select distinct c.budget, c.key, c.doc
from given as g cross join charge as c on c.budget = g.budget and c.key = g.key

-- name: ledgers
select budget, execution, doc from ledger where execution in (?)

-- name: reservations_of
select id, doc from reservation where execution in (?)

-- name: reservations
select id, doc from reservation where id in (?)

-- name: budget_versions
with given (name) as (values (?))
select distinct b.name, b.version from given as g cross join budget as b on b.name = g.name

-- name: reservation_ids
select id from reservation where id in (?)

-- name: new_budgets
insert into budget (name, version, parent, scope, scope_id, next_reset_at, doc)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (name) do update set
    version = excluded.version, parent = excluded.parent, scope = excluded.scope,
    scope_id = excluded.scope_id, next_reset_at = excluded.next_reset_at, doc = excluded.doc

-- name: gone_budgets
delete from budget where name in (?)

-- name: gone_budget_ledgers
delete from ledger where budget in (?)

-- name: gone_budget_charges
delete from charge where budget in (?)

-- name: new_ledgers
insert into ledger (budget, execution, doc) values (?, ?, ?)
on conflict (execution, budget) do update set doc = excluded.doc

-- name: gone_ledgers
delete from ledger where budget = ? and execution = ?

-- name: new_charges
insert into charge (budget, key, until, doc) values (?, ?, ?, ?)
on conflict (budget, key) do update set until = excluded.until, doc = excluded.doc

-- name: new_reservations
insert into reservation (id, execution, epoch, doc) values (?, ?, ?, ?)
on conflict (id) do update set
    execution = excluded.execution, epoch = excluded.epoch, doc = excluded.doc

-- name: gone_reservations
delete from reservation where id in (?)

-- name: trimmed_charges
delete from charge where (budget, key) in (
    select budget, key from charge where until <= :now order by until limit :limit
)
