-- Lanes: which there are.

-- name: lane_names
select n.name
from (
    select t.lane as name from {schema}.route t where $1::text is null or t.lane > $1
    union
    select l.name from {schema}.lane l where $1::text is null or l.name > $1
) n
order by n.name limit $2
