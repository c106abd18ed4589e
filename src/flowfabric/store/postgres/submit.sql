-- Creating executions: one statement for everything that belongs to a batch of them.

-- name: submitted_executions
-- Gives the ids that were created. Only keys of executions that do not exist are taken, and only
-- executions whose key was taken are created. `(… in …) is true` stays a hashed lookup, whatever
-- joins the connection has switched off.
with keyed as (
    insert into {schema}.dedup (namespace, key, id, until)
    select k.namespace, k.key, k.id, k.until
    from unnest($9::text[], $10::text[], $11::uuid[], $12::bigint[])
        as k (namespace, key, id, until)
    where (select e.id from {schema}.execution e where e.id = k.id) is null
    on conflict (namespace, key) do update set id = excluded.id, until = excluded.until
    where dedup.until <= $13
    returning dedup.id
),
made as (
    insert into {schema}.execution (id, created_at, route, policy, facts, flow, payload)
    select n.id, n.created_at, n.route, n.policy, n.facts, n.flow, n.payload
    from unnest(
        $1::uuid[], $2::bigint[], $3::integer[], $4::bytea[], $5::bytea[],
        $6::uuid[], $7::bytea[], $8::boolean[]
    ) as n (id, created_at, route, policy, facts, flow, payload, keyed)
    where n.keyed is null or (n.id in (select keyed.id from keyed)) is true
    on conflict (id) do nothing
    returning execution.id
),
made_ready as (
    -- version 1, no lease yet, the first attempt to come, without a hold
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life, route, timeout, held_until
    )
    select r.id, 1, 0, r.rank, r.flags, 0, 0, r.life, r.route, r.timeout, 0
    from unnest(
        $14::uuid[], $15::bigint[], $16::smallint[], $17::bytea[], $18::integer[], $19::bigint[]
    ) as r (id, rank, flags, life, route, timeout)
    where (r.id in (select made.id from made)) is true
),
made_parked as (
    insert into {schema}.parked (
        id, version, epoch, rank, flags, attempt, start, life,
        timeout, gate, due_at, since, note, queue
    )
    select p.*
    from unnest(
        $20::uuid[], $21::integer[], $22::integer[], $23::bigint[], $24::smallint[],
        $25::integer[], $26::smallint[], $27::bytea[],
        $28::bigint[], $29::smallint[], $30::bigint[], $31::bigint[], $32::bytea[],
        $33::bigint[]
    ) as p (id)
    where (p.id in (select made.id from made)) is true
),
made_deadlines as (
    insert into {schema}.deadline (id, at)
    select d.id, d.at from unnest($34::uuid[], $35::bigint[]) as d (id, at)
    where (d.id in (select made.id from made)) is true
),
made_tags as (
    insert into {schema}.tag (id, key, value, at)
    select t.id, t.key, t.value, t.at
    from unnest($36::uuid[], $37::text[], $38::text[], $39::bigint[]) as t (id, key, value, at)
    where (t.id in (select made.id from made)) is true
)
select made.id from made

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
    select w.id, w.lane, null, w.at from {schema}.arrival w where w.id = asked.found
) known
