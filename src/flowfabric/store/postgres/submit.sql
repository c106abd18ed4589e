-- Creating executions: one statement for everything that belongs to a batch of them.

-- part: given_rows
-- What all share of some columns comes as one element. The lead is how far the rank is from the
-- creation, the same for all of one priority; executions that wait for neither a worker nor their
-- limits have none. Those with a queue wait in it, unless they are admitted and the `admission` stands.
select
    n.id, n.created_at, n.policy, n.facts, n.flow, n.payload, n.keyed, n.life, n.timeout, n.queue,
    case when (select admission.stands from admission) then n.admitted_at end as admitted_at,
    case cardinality($3::integer[]) when 1 then ($3::integer[])[1] else n.route end as route,
    case cardinality($9::bigint[]) when 1 then ($9::bigint[])[1] else n.lead end as lead,
    case cardinality($10::smallint[]) when 1 then ($10::smallint[])[1] else n.flags end as flags
from unnest(
    $1::uuid[], $2::bigint[], $3::integer[], $4::bytea[], $5::bytea[], $6::uuid[], $7::bytea[],
    $8::boolean[], $9::bigint[], $10::smallint[], $11::bytea[], $12::bigint[],
    $38::bigint[], $39::bigint[]
) as n (
    id, created_at, route, policy, facts, flow, payload, keyed, lead, flags, life, timeout,
    queue, admitted_at
)

-- part: created_rows
-- What becomes of the rows that are `given`, and of those that belong to them.
keyed as (
    insert into {schema}.dedup (namespace, key, id, until)
    select k.namespace, k.key, k.id, k.until
    from unnest($13::text[], $14::text[], $15::uuid[], $16::bigint[])
        as k (namespace, key, id, until)
    where (select e.id from {schema}.execution e where e.id = k.id) is null
    on conflict (namespace, key) do update set id = excluded.id, until = excluded.until
    where dedup.until <= $17
    returning dedup.id
),
made as (
    insert into {schema}.execution (id, created_at, route, policy, facts, flow, payload)
    select n.id, n.created_at, n.route, n.policy, n.facts, n.flow, n.payload
    from given n
    where n.keyed is null or (n.id in (select keyed.id from keyed)) is true
    on conflict (id) do nothing
    returning execution.id
),
made_ready as (
    -- version 1, no lease yet, the first attempt to come, without a hold
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life, route, timeout, held_until, queue
    )
    select
        n.id, 1, 0, coalesce(n.admitted_at, n.created_at) + n.lead, n.flags, 0, 0, n.life, n.route,
        n.timeout, 0, n.queue
    from given n
    where n.lead is not null and (n.queue is null or n.admitted_at is not null)
        and (n.id in (select made.id from made)) is true
),
made_waiting as (
    insert into {schema}.parked (
        id, version, epoch, rank, flags, attempt, start, life, timeout, gate, queue
    )
    select n.id, 1, 0, n.created_at + n.lead, n.flags, 0, 0, n.life, n.timeout, 8, n.queue
    from given n
    where n.queue is not null and n.admitted_at is null
        and (n.id in (select made.id from made)) is true
),
made_parked as (
    insert into {schema}.parked (
        id, version, epoch, rank, flags, attempt, start, life,
        timeout, gate, due_at, since, note, queue
    )
    select
        p.id,
        case cardinality($19::integer[]) when 1 then ($19::integer[])[1] else p.version end,
        case cardinality($20::integer[]) when 1 then ($20::integer[])[1] else p.epoch end,
        p.rank,
        case cardinality($22::smallint[]) when 1 then ($22::smallint[])[1] else p.flags end,
        case cardinality($23::integer[]) when 1 then ($23::integer[])[1] else p.attempt end,
        case cardinality($24::smallint[]) when 1 then ($24::smallint[])[1] else p.start end,
        p.life, p.timeout,
        case cardinality($27::smallint[]) when 1 then ($27::smallint[])[1] else p.gate end,
        p.due_at, p.since, p.note, p.queue
    from unnest(
        $18::uuid[], $19::integer[], $20::integer[], $21::bigint[], $22::smallint[],
        $23::integer[], $24::smallint[], $25::bytea[],
        $26::bigint[], $27::smallint[], $28::bigint[], $29::bigint[], $30::bytea[],
        $31::bigint[]
    ) as p (
        id, version, epoch, rank, flags, attempt, start, life,
        timeout, gate, due_at, since, note, queue
    )
    where (p.id in (select made.id from made)) is true
),
made_deadlines as (
    insert into {schema}.deadline (id, at)
    select d.id, d.at from unnest($32::uuid[], $33::bigint[]) as d (id, at)
    where (d.id in (select made.id from made)) is true
),
made_tags as (
    insert into {schema}.tag (id, key, value, at)
    select t.id, t.key, t.value, t.at
    from unnest($34::uuid[], $35::text[], $36::text[], $37::bigint[]) as t (id, key, value, at)
    where (t.id in (select made.id from made)) is true
)

-- name: submitted_executions
-- Gives the ids that were created. Only keys of executions that do not exist are taken, and only
-- executions whose key was taken are created. `(… in …) is true` stays a hashed lookup, whatever
-- joins the connection has switched off.
with admission as materialized (select false as stands),
given as materialized (
    -- include: given_rows
),
-- include: created_rows
select made.id from made

-- name: ready_executions
-- The same for executions that wait for a worker only, and have neither key nor deadline nor tags: a
-- plan of a third of the size, which counts where few are created at a time.
with given as materialized (
    select
        n.id, n.created_at, n.policy, n.facts, n.flow, n.payload, n.life, n.timeout,
        case cardinality($3::integer[]) when 1 then ($3::integer[])[1] else n.route end as route,
        case cardinality($8::bigint[]) when 1 then ($8::bigint[])[1] else n.lead end as lead,
        case cardinality($9::smallint[]) when 1 then ($9::smallint[])[1] else n.flags end as flags
    from unnest(
        $1::uuid[], $2::bigint[], $3::integer[], $4::bytea[], $5::bytea[], $6::uuid[], $7::bytea[],
        $8::bigint[], $9::smallint[], $10::bytea[], $11::bigint[]
    ) as n (
        id, created_at, route, policy, facts, flow, payload, lead, flags, life, timeout
    )
),
made as (
    insert into {schema}.execution (id, created_at, route, policy, facts, flow, payload)
    select n.id, n.created_at, n.route, n.policy, n.facts, n.flow, n.payload
    from given n
    on conflict (id) do nothing
    returning execution.id
),
made_ready as (
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life, route, timeout, held_until, queue
    )
    select
        n.id, 1, 0, n.created_at + n.lead, n.flags, 0, 0, n.life, n.route, n.timeout, 0, null
    from given n
    where (n.id in (select made.id from made)) is true
)
select made.id from made

-- name: admitted_executions
-- The same with new executions that go through their quotas at once, if the quotas $40 still have
-- the versions $41; otherwise they wait in their lines. So they do if another session has a lock on a
-- quota, or if a run waits in one of their lines: it may have come after the last look, and is not
-- overtaken. The second column tells whether they went through.
with locked as materialized (
    select q.name, q.version from {schema}.quota q
    where q.name = any($40::text[])
    order by q.name
    for no key update skip locked
),
admission as materialized (
    select count(*) = cardinality($40) and not exists (
        select from (
            select distinct u.queue from unnest($38::bigint[], $39::bigint[]) as u (queue, admitted_at)
            where u.admitted_at is not null
        ) a
        cross join lateral (
            select from {schema}.parked p where p.queue = a.queue and p.gate = 8 limit 1
        ) w
    ) as stands
    from unnest($40::text[], $41::bigint[]) as g (name, version)
    join locked on locked.name = g.name and locked.version = g.version
),
given as materialized (
    -- include: given_rows
),
-- include: created_rows
,
counted as (
    update {schema}.quota set version = version + 1
    where name = any($40) and (select admission.stands from admission)
)
select made.id, (select admission.stands from admission) from made

-- name: known_executions
-- For each submission that created nothing: the execution that was there, by a live key first. One
-- that has only arrived counts as well.
select asked.id, known.id, known.lane, known.flow, known.created_at
from (
    select a.id, coalesce(
        (
            select d.id from {schema}.dedup d
            where d.namespace = a.namespace and d.key = a.key and d.until > $4
        ),
        a.id
    ) as found
    from unnest($1::uuid[], $2::text[], $3::text[]) as a (id, namespace, key)
) asked
cross join lateral (
    select e.id, r.lane, e.flow, e.created_at
    from {schema}.execution e join {schema}.route r on r.number = e.route
    where e.id = asked.found
    union all
    select w.id, w.lane, null, w.at from {schema}.submission_inbox w where w.id = asked.found
) known
