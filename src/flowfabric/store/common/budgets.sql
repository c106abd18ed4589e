-- Budgets and what was spent of them.

-- name: attached_budgets
select scope, scope_id, name from {schema}.budget
where scope is not null order by scope, scope_id, name

-- name: stale_reservations
select r.id, r.doc from {schema}.reservation as r
where not exists (
    select 1 from {schema}.lease as l where l.id = r.execution and l.epoch = r.epoch
)
order by r.id limit $1
