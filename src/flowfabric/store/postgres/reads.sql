-- Reading executions.

-- name: snapshots
select * from {schema}.snapshot where id = any($1::uuid[])

-- name: details
-- The columns of a snapshot, then what else there is, in one statement.
select
    s.*, e.payload,
    array(select t.key from {schema}.tag t where t.id = s.id order by t.key),
    array(select t.value from {schema}.tag t where t.id = s.id order by t.key),
    array(
        select row(p.attempt, p.percent, p.message) from {schema}.progress p where p.id = s.id
    ),
    (
        select p.state_value from {schema}.progress p
        where p.id = s.id and p.state_value is not null order by p.attempt desc limit 1
    ),
    greatest(
        s.created_at, s.started_at, s.renewed_at, s.since, s.ended_at,
        (select max(p.at) from {schema}.progress p where p.id = s.id),
        (select max(t.at) from {schema}.tag t where t.id = s.id),
        (select v.at from {schema}.event v where v.id = s.id order by v.seq desc limit 1)
    )
from {schema}.snapshot s
join {schema}.execution e on e.id = s.id
where s.id = $1

-- name: attempts_at
select a.id, t.doc
from unnest($1::uuid[], $2::integer[]) as a (id, "index")
cross join lateral (
    select t.doc from {schema}.attempt t where t.id = a.id and t.index = a.index offset 0
) t

-- name: steps_of
-- A generation that all share comes as one element.
select a.at, s.generation, s.position, s.name, s.occurrence, s.doc
from unnest($1::uuid[], $2::integer[]) with ordinality as a (id, generation, at)
cross join lateral (
    select * from {schema}.step t
    where t.id = a.id and t.generation = coalesce(a.generation, ($2::integer[])[1]) offset 0
) s
order by a.at, s.position

-- name: tags_of
select t.id, t.key, t.value from {schema}.tag t where t.id = any($1::uuid[]) order by t.id, t.key

-- name: tagged_execution
-- All tags or none; gives a row when there is such an execution.
with found as (
    select id from {schema}.execution where id = $1
), tagged as (
    insert into {schema}.tag (id, key, value, at)
    select f.id, t.key, t.value, $4
    from found f cross join unnest($2::text[], $3::text[]) as t (key, value)
    on conflict (id, key) do update set value = excluded.value, at = excluded.at
)
select id from found

-- name: window_end
-- The last execution a page may look at; none when fewer are left.
select created_at, id from {schema}.execution
where ($1::bigint is null or (created_at, id) > ($1, $2::uuid))
    and ($3::bigint is null or created_at >= $3) and ($4::bigint is null or created_at < $4)
order by created_at, id offset $5 limit 1

-- name: window_end_newest_first
select created_at, id from {schema}.execution
where ($1::bigint is null or (created_at, id) < ($1, $2::uuid))
    and ($3::bigint is null or created_at >= $3) and ($4::bigint is null or created_at < $4)
order by created_at desc, id desc offset $5 limit 1

-- part: wanted_executions
-- Executions of the window `e` that pass the filter, as the view `snapshot` gives them (`s`).
cross join lateral (
    select * from {schema}.snapshot v where v.id = e.id offset 0
) s
where (
        coalesce($7, $8, $9::text) is null or e.route in (
            select r.number from {schema}.route r
            where ($7::text is null or r.kind = $7)
                and ($8::text is null or r.namespace = $8) and ($9::text is null or r.lane = $9)
        )
    )
    and (
        $10::text is null
        or (select t.value from {schema}.tag t where t.id = e.id and t.key = $10) = $11::text
    )
    and (
        $12::boolean is null
        or s.place = 'ready' and case when s.lost is null then $12 else $13::boolean end
        or s.place = 'lease' and $13::boolean
        or s.place = 'parked' and s.gate = any($14::smallint[])
        or s.place = 'done' and s.outcome = any($15::smallint[])
    )
    and ($17::uuid is null or e.flow = $17)

-- name: listed_executions
select s.*
from (
    select id, created_at, route, flow from {schema}.execution
    where ($1::bigint is null or (created_at, id) > ($1, $2::uuid))
        and ($3::bigint is null or created_at >= $3) and ($4::bigint is null or created_at < $4)
        and ($5::bigint is null or (created_at, id) <= ($5, $6::uuid))
    order by created_at, id
) e
-- include: wanted_executions
order by e.created_at, e.id
limit $16

-- name: listed_executions_newest_first
select s.*
from (
    select id, created_at, route, flow from {schema}.execution
    where ($1::bigint is null or (created_at, id) < ($1, $2::uuid))
        and ($3::bigint is null or created_at >= $3) and ($4::bigint is null or created_at < $4)
        and ($5::bigint is null or (created_at, id) >= ($5, $6::uuid))
    order by created_at desc, id desc
) e
-- include: wanted_executions
order by e.created_at desc, e.id desc
limit $16

-- name: executions_by_partition
select s.*
from (
    select e.id from {schema}.execution e
    where ($2::uuid is null or e.id > $2)
        and (
            e.flow is not null
            or e.route in (select r.number from {schema}.route r where r.lane = any($1::text[]))
        )
    order by e.id limit $3
) m
cross join lateral (
    select * from {schema}.snapshot v where v.id = m.id offset 0
) s
order by m.id

-- name: failed_executions
select s.*
from (
    select d.ended_at, d.id from {schema}.done d
    where d.outcome = 1 and d.ended_at >= $1
        and ($2::bigint is null or (d.ended_at, d.id) < ($2, $3::uuid))
    order by d.ended_at desc, d.id desc limit $4
) best
cross join lateral (
    select * from {schema}.snapshot v where v.place = 'done' and v.id = best.id offset 0
) s
order by best.ended_at desc, best.id desc

-- name: candidates
with filled as materialized (
    select from {schema}.lane l
    where $5::text[] is not null and l.name = $1 and l.concurrency is not null
        and l.concurrency <= (
            select count(*)
            from {schema}.lease x join {schema}.route t on t.number = x.route where t.lane = $1
        )
)
select s.*
from (
    select c.id, c.rank
    from {schema}.route r
    cross join lateral (
        select q.id, q.rank from {schema}.ready q
        where q.route = r.number and q.lost is null and q.held_until <= $3
            and (
                (q.start <> 0 and q.start <> 2) or $5::text[] is null
                or (select l.state from {schema}.lane l where l.name = $1) is distinct from 2
            )
        order by q.rank, q.id limit $4
    ) c
    where r.lane = $1 and ($2::text is null or r.namespace = $2)
        and not exists (select from filled)
        and (
            $5::text[] is null
            or (
                string_to_array(r.capabilities, ',') <@ $5
                and (select l.state from {schema}.lane l where l.name = $1) is distinct from 1
            )
        )
    order by c.rank, c.id limit $4
) best
cross join lateral (
    select * from {schema}.snapshot v where v.place = 'ready' and v.id = best.id offset 0
) s
order by best.rank, best.id

-- name: expired_leases
-- Leases that ran out, and lost executions; when their lease ended stands in their life. One that was
-- revoked ended then.
select x.route, x.flow, x.id, x.expires_at, x.epoch, x.attempt, x.claim, x.worker, x.life
from (
    select
        e.route, e.flow, l.id, l.expires_at, l.epoch, l.attempt, l.claim, l.worker,
        null::bytea as life
    from {schema}.lease l join {schema}.execution e on e.id = l.id
    where l.expires_at <= $1
    union all
    select
        e.route, e.flow, q.id,
        least(cast(lapsed ->> 'expires_at' as bigint), cast(lapsed ->> 'at' as bigint)),
        q.epoch, q.attempt - 1, null, null, q.life
    from {schema}.ready q join {schema}.execution e on e.id = q.id
    cross join lateral (select {schema}.readable_json(q.life) -> 'lapsed' as lapsed offset 0) l
    where q.lost is not null
) x
join {schema}.route r on r.number = x.route
where ($2::bigint is null or (x.expires_at, x.id) > ($2, $3::uuid))
    and x.expires_at <= $1
    and ($4::text is null or r.namespace = $4)
order by x.expires_at, x.id
limit $5

-- part: wanted_row
-- Whether a row `w` is of a wanted route.
coalesce($1, $2) is null or (
    select e.route from {schema}.execution e where e.id = w.id
) in (select number from wanted)

-- name: state_counts
-- How many rows of each kind are wanted, counted up to $3: the table, the number that tells its rows
-- apart (lost, gate or outcome), why a blocked one is blocked, and how many rows were looked at. Where
-- rows are left out, at most $5 are looked at: parked ones, those of each outcome of $4 (an index knows
-- them), and the newest executions for those that succeeded. Without a filter no routes are `wanted`.
with wanted as materialized (
    select r.number from {schema}.route r
    where coalesce($1::text, $2::text) is not null
        and ($1 is null or r.namespace = $1) and ($2 is null or r.lane = $2)
)
select 'ready' as place, null::smallint as cell, null::text as blocked, count(*), 0::bigint as seen
from (
    select from {schema}.ready q where coalesce($1, $2) is null and q.lost is null
    union all
    select
    from wanted
    cross join lateral (
        select from {schema}.ready q
        where q.route = wanted.number and q.lost is null
        order by q.rank, q.id limit $3
    ) r
    limit $3
) n
union all
select 'ready', 0, null, count(*), 0
from (
    select from {schema}.ready q
    where q.lost is not null
        and (coalesce($1, $2) is null or q.route in (select number from wanted))
    limit $3
) n
union all
select 'lease', null, null, count(*), 0
from (
    select from {schema}.lease l
    where coalesce($1, $2) is null or l.route in (select number from wanted)
    limit $3
) n
union all
select
    'parked', w.gate,
    case w.gate when 2 then {schema}.readable_json(w.life) ->> 'blocked' end as blocked,
    count(*) filter (where
        -- include: wanted_row
    ),
    count(*)
from (select * from {schema}.parked limit $5) w
group by w.gate, blocked
union all
select 'done', 0, null, (
    select count(*) from (
        select from {schema}.done d where coalesce($1, $2) is null and d.outcome = 0
        union all
        select
        from (select e.id, e.route from {schema}.execution e order by e.created_at desc limit $5) w
        where case when w.route in (select number from wanted) then (
            select d.outcome = 0 from {schema}.done d where d.id = w.id
        ) end
        limit $3
    ) n
), (
    select count(*) from (
        select from {schema}.execution e where coalesce($1, $2) is not null limit $5
    ) n
)
union all
select 'done', o.outcome, null, (
    select count(*) from (
        select
        from (
            select d.id from {schema}.done d
            where d.outcome = o.outcome and d.outcome <> 0 limit $5
        ) w
        where
            -- include: wanted_row
        limit $3
    ) n
), (
    select count(*) from (
        select from {schema}.done d
        where d.outcome = o.outcome and d.outcome <> 0 and coalesce($1, $2) is not null limit $5
    ) n
)
from unnest($4::smallint[]) as o (outcome)

-- name: ended_executions
-- The view would begin with the executions; most of those that are asked about have not ended.
select s.*
from {schema}.done d
cross join lateral (
    select * from {schema}.snapshot v where v.place = 'done' and v.id = d.id offset 0
) s
where d.id = any($1::uuid[])
