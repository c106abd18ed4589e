-- What a doctor wants to know of every store.

-- name: upkeep
-- Leases that expired and waits that were over before $1, each counted up to 1,000; the duty.
select
    (select count(*) from (select 1 from {schema}.lease where expires_at <= $1 limit 1000) n),
    (select count(*) from (select 1 from {schema}.parked where due_at <= $1 limit 1000) n),
    (select max(until) from {schema}.duty)
