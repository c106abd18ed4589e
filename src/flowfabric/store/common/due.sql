-- What time makes due, and who looks after it.

-- name: next_due_moment
select min(at) from (
    select min(at) as at from {schema}.deadline where at > $1
    union all
    select min(due_at) from {schema}.parked where due_at > $1
    union all
    select min(expires_at) from {schema}.lease where expires_at > $1 and $2
    union all
    select min(times_out_at) from {schema}.lease where times_out_at > $1 and $2
) as soon

-- name: dropped_duty
delete from {schema}.duty where name = $1 and holder = $2
