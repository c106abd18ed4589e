-- Changes that need no transaction of their own: one statement compares, moves and writes the rest.
-- Rows of `parked` and `ready` are never changed in place, so a row found by its place is the one
-- that was compared, or gone. A statement that had to wait for a lock finds the row gone and writes
-- nothing for it. Only the session that locks the row writes its edges and signals: while the row
-- exists, its edges keep their places. Rows of `lease` are changed in place: their version and expiry
-- are compared in the statement that moves them, which looks again at a row that it had to wait for.

-- part: made_ready
-- What was `moved` waits for a worker.
made_ready as (
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life,
        route, timeout, held_until, held_for, lost, queue
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
        g.route, g.timeout, g.held_until, g.held_for, g.lost, g.queue
    from moved g
)

-- part: written_beside
-- What changes write beside the rows that were `moved`. What all share of a column comes as one
-- element; ids that are those of the changes, one each and in their order, come as NULL.
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select
        v.id, coalesce(v.at, ($2::bigint[])[1]), coalesce(v.kind, ($3::smallint[])[1]),
        coalesce(v.epoch, ($4::integer[])[1]),
        case cardinality($5::integer[]) when 1 then ($5::integer[])[1] else v.attempt end,
        case cardinality($6::integer[]) when 1 then ($6::integer[])[1] else v.worker end,
        v.detail
    from unnest(
        coalesce($1::uuid[], $27::uuid[]), $2::bigint[], $3::smallint[], $4::integer[],
        $5::integer[], $6::integer[], $7::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select moved.id from moved)) is true
),
recorded as (
    insert into {schema}.step (id, generation, name, occurrence, position, doc)
    select
        v.id, coalesce(v.generation, ($9::integer[])[1]), coalesce(v.name, ($10::text[])[1]),
        coalesce(v.occurrence, ($11::integer[])[1]), coalesce(v.position, ($12::integer[])[1]),
        v.doc
    from unnest(
        coalesce($8::uuid[], $27::uuid[]), $9::integer[], $10::text[], $11::integer[],
        $12::integer[], $13::bytea[]
    ) as v (id, generation, name, occurrence, position, doc)
    where (v.id in (select moved.id from moved)) is true
    on conflict (id, generation, name, occurrence) do nothing
),
opened as (
    insert into {schema}.waitpoint (id, waitpoint, attempt, doc)
    select v.id, v.waitpoint, v.attempt, v.doc
    from unnest(
        coalesce($14::uuid[], $27::uuid[]), $15::uuid[], $16::integer[], $17::bytea[]
    ) as v (id, waitpoint, attempt, doc)
    where (v.id in (select moved.id from moved)) is true
    on conflict (id, waitpoint) do nothing
),
received as (
    insert into {schema}.signal (id, number, waitpoint, suspension, doc)
    select v.id, coalesce(v.number, ($19::integer[])[1]), v.waitpoint, v.suspension, v.doc
    from unnest(
        coalesce($18::uuid[], $27::uuid[]), $19::integer[], $20::uuid[], $21::uuid[], $22::bytea[]
    ) as v (id, number, waitpoint, suspension, doc)
    where (v.id in (select moved.id from moved)) is true
),
marked as (
    insert into {schema}.dedup_record (id, key, until, doc)
    select v.id, v.key, v.until, v.doc
    from unnest(
        coalesce($23::uuid[], $27::uuid[]), $24::bytea[], $25::bigint[], $26::bytea[]
    ) as v (id, key, until, doc)
    where (v.id in (select moved.id from moved)) is true
    on conflict (id, key) do update set until = excluded.until, doc = excluded.doc
)

-- name: resumed_directly
-- From `parked` to `ready`, with steps, signals and the like.
with moved as (
    delete from {schema}.parked t
    using (
        select
            f.ctid as place, m.id, coalesce(m.version, ($28::integer[])[1]) as version,
            coalesce(m.epoch, ($29::integer[])[1]) as epoch,
            coalesce(m.rank, ($30::bigint[])[1]) as rank,
            coalesce(m.flags, ($31::smallint[])[1]) as flags,
            coalesce(m.attempt, ($32::integer[])[1]) as attempt,
            coalesce(m.start, ($33::smallint[])[1]) as start, m.life,
            coalesce(m.route, ($35::integer[])[1]) as route, m.timeout,
            coalesce(m.held_until, ($37::bigint[])[1]) as held_until, m.held_for, m.lost, m.queue
        from unnest(
            $27::uuid[], $28::integer[], $29::integer[], $30::bigint[], $31::smallint[],
            $32::integer[], $33::smallint[], $34::bytea[], $35::integer[], $36::bigint[],
            $37::bigint[], $38::text[], $39::smallint[], $40::bigint[], $41::integer[]
        ) as m (
            id, version, epoch, rank, flags, attempt, start, life,
            route, timeout, held_until, held_for, lost, queue, expected
        )
        cross join lateral (
            select p.ctid from {schema}.parked p
            where p.id = m.id and p.version = coalesce(m.expected, ($41::integer[])[1]) offset 0
        ) f
    ) g
    where t.ctid = g.place
    returning g.*
),
-- include: made_ready
,
-- include: written_beside
select moved.id from moved

-- name: suspended_directly
-- From `lease` to `parked`.
with moved as (
    delete from {schema}.lease l
    using (
        select
            n.id, coalesce(n.version, ($28::integer[])[1]) as version,
            coalesce(n.epoch, ($29::integer[])[1]) as epoch,
            coalesce(n.rank, ($30::bigint[])[1]) as rank,
            coalesce(n.flags, ($31::smallint[])[1]) as flags,
            coalesce(n.attempt, ($32::integer[])[1]) as attempt,
            coalesce(n.start, ($33::smallint[])[1]) as start, n.life, n.timeout,
            coalesce(n.gate, ($36::smallint[])[1]) as gate, n.due_at,
            case cardinality($38::bigint[]) when 1 then ($38::bigint[])[1] else n.since end
                as since,
            n.note, n.queue, coalesce(n.expected, ($41::integer[])[1]) as expected,
            coalesce(n.expires_at, ($42::bigint[])[1]) as expires_at
        from unnest(
            $27::uuid[], $28::integer[], $29::integer[], $30::bigint[], $31::smallint[],
            $32::integer[], $33::smallint[], $34::bytea[], $35::bigint[], $36::smallint[],
            $37::bigint[], $38::bigint[], $39::bytea[], $40::bigint[], $41::integer[],
            $42::bigint[]
        ) as n (
            id, version, epoch, rank, flags, attempt, start, life,
            timeout, gate, due_at, since, note, queue, expected, expires_at
        )
    ) g
    where l.id = any(array[g.id]) and l.version = g.expected and l.expires_at = g.expires_at
    returning g.*
),
made_parked as (
    insert into {schema}.parked (
        id, version, epoch, rank, flags, attempt, start, life,
        timeout, gate, due_at, since, note, queue
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
        g.timeout, g.gate, g.due_at, g.since, g.note, g.queue
    from moved g
),
-- include: written_beside
select moved.id from moved

-- name: held_directly
-- In `lease`, where it stays.
with moved as (
    update {schema}.lease l
    set version = g.version, epoch = g.epoch, rank = g.rank, flags = g.flags, attempt = g.attempt,
        start = g.start, life = g.life, claim = g.claim, worker = g.worker,
        started_at = g.started_at, expires_at = g.expires_at, times_out_at = g.times_out_at,
        renewed_at = g.renewed_at, route = g.route, queue = g.queue
    from (
        select
            n.id, coalesce(n.version, ($28::integer[])[1]) as version,
            coalesce(n.epoch, ($29::integer[])[1]) as epoch,
            coalesce(n.rank, ($30::bigint[])[1]) as rank,
            coalesce(n.flags, ($31::smallint[])[1]) as flags,
            coalesce(n.attempt, ($32::integer[])[1]) as attempt,
            coalesce(n.start, ($33::smallint[])[1]) as start, n.life,
            coalesce(n.claim, ($35::uuid[])[1]) as claim,
            coalesce(n.worker, ($36::integer[])[1]) as worker,
            coalesce(n.started_at, ($37::bigint[])[1]) as started_at,
            coalesce(n.expires_at, ($38::bigint[])[1]) as expires_at,
            n.times_out_at, n.renewed_at, coalesce(n.route, ($41::integer[])[1]) as route, n.queue,
            coalesce(n.expected, ($43::integer[])[1]) as expected,
            coalesce(n.expired_at, ($44::bigint[])[1]) as expired_at
        from unnest(
            $27::uuid[], $28::integer[], $29::integer[], $30::bigint[], $31::smallint[],
            $32::integer[], $33::smallint[], $34::bytea[], $35::uuid[], $36::integer[],
            $37::bigint[], $38::bigint[], $39::bigint[], $40::bigint[], $41::integer[],
            $42::bigint[], $43::integer[], $44::bigint[]
        ) as n (
            id, version, epoch, rank, flags, attempt, start, life,
            claim, worker, started_at, expires_at, times_out_at, renewed_at, route, queue,
            expected, expired_at
        )
    ) g
    where l.id = any(array[g.id]) and l.version = g.expected and l.expires_at = g.expired_at
    returning l.id
),
-- include: written_beside
select moved.id from moved

-- name: readied_directly
-- From `parked` to `ready`.
with moved as (
    delete from {schema}.parked t
    using (
        select f.ctid as place, m.*
        from unnest(
            $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
            $7::smallint[], $8::bytea[], $9::integer[], $10::bigint[], $11::bigint[], $12::text[],
            $13::smallint[], $14::bigint[], $15::integer[]
        ) as m (
            id, version, epoch, rank, flags, attempt, start, life,
            route, timeout, held_until, held_for, lost, queue, expected
        )
        cross join lateral (
            select p.ctid from {schema}.parked p
            where p.id = m.id and p.version = m.expected offset 0
        ) f
    ) g
    where t.ctid = g.place
    returning g.*
),
-- include: made_ready
,
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from unnest(
        $16::uuid[], $17::bigint[], $18::smallint[], $19::integer[], $20::integer[],
        $21::integer[], $22::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select moved.id from moved)) is true
),
settled as (
    update {schema}.edge t set outcome = g.outcome
    from (
        select f.ctid as place, c.outcome
        from unnest($23::uuid[], $24::uuid[], $25::uuid[], $26::smallint[])
            as c (downstream, flow, id, outcome)
        cross join lateral (
            select s.ctid from {schema}.edge s where s.flow = c.flow and s.id = c.id offset 0
        ) f
        where (c.downstream in (select moved.id from moved)) is true
    ) g
    where t.ctid = g.place
),
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select c.flow, c.id, c.number, c.kind, c.outcome, c.spared
    from unnest(
        $27::uuid[], $28::uuid[], $29::uuid[], $30::integer[], $31::smallint[],
        $32::smallint[], $33::boolean[]
    ) as c (by, flow, id, number, kind, outcome, spared)
    where (c.by in (select moved.id from moved)) is true
    on conflict (flow, id, number, kind) do nothing
)
select moved.id from moved

-- name: ended_directly
-- From `ready` or `parked` to `done`; a version is in one place only. What all share of a column comes
-- as one element; ids that are those of the endings, one each and in their order, come as NULL.
with given as materialized (
    select
        m.id, coalesce(m.version, ($2::integer[])[1]) as version,
        coalesce(m.epoch, ($3::integer[])[1]) as epoch,
        coalesce(m.rank, ($4::bigint[])[1]) as rank,
        coalesce(m.flags, ($5::smallint[])[1]) as flags, m.attempt,
        coalesce(m.start, ($7::smallint[])[1]) as start,
        case cardinality($8::bytea[]) when 1 then ($8::bytea[])[1] else m.life end as life,
        coalesce(m.outcome, ($9::smallint[])[1]) as outcome,
        coalesce(m.ended_at, ($10::bigint[])[1]) as ended_at,
        case cardinality($11::smallint[]) when 1 then ($11::smallint[])[1] else m.pending end
            as pending,
        m.claim, m.worker, m.started_at, m.result, m.trim_at,
        coalesce(m.expected, ($17::integer[])[1]) as expected
    from unnest(
        $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::integer[],
        $7::smallint[], $8::bytea[], $9::smallint[], $10::bigint[], $11::smallint[], $12::uuid[],
        $13::integer[], $14::bigint[], $15::bytea[], $16::bigint[], $17::integer[]
    ) as m (
        id, version, epoch, rank, flags, attempt, start, life,
        outcome, ended_at, pending, claim, worker, started_at, result, trim_at, expected
    )
),
gone_ready as (
    delete from {schema}.ready t
    using (
        select f.ctid as place, m.*
        from given m
        cross join lateral (
            select r.ctid from {schema}.ready r
            where r.id = m.id and r.version = m.expected offset 0
        ) f
    ) g
    where t.ctid = g.place
    returning g.*
),
gone_parked as (
    delete from {schema}.parked t
    using (
        select f.ctid as place, m.*
        from given m
        cross join lateral (
            select p.ctid from {schema}.parked p
            where p.id = m.id and p.version = m.expected offset 0
        ) f
    ) g
    where t.ctid = g.place
    returning g.*
),
gone as materialized (
    select * from gone_ready
    union all
    select * from gone_parked
),
made_done as (
    insert into {schema}.done (
        id, version, epoch, rank, flags, attempt, start, life,
        outcome, ended_at, pending, claim, worker, started_at, result, trim_at
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
        g.outcome, g.ended_at, g.pending, g.claim, g.worker, g.started_at, g.result, g.trim_at
    from gone g
),
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select
        v.id, coalesce(v.at, ($19::bigint[])[1]), coalesce(v.kind, ($20::smallint[])[1]),
        coalesce(v.epoch, ($21::integer[])[1]), v.attempt, v.worker,
        case cardinality($24::bytea[]) when 1 then ($24::bytea[])[1] else v.detail end
    from unnest(
        coalesce($18::uuid[], $1::uuid[]), $19::bigint[], $20::smallint[], $21::integer[],
        $22::integer[], $23::integer[], $24::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select gone.id from gone)) is true
),
settled as (
    update {schema}.edge t set outcome = g.outcome
    from (
        select f.ctid as place, c.outcome
        from unnest($25::uuid[], $26::uuid[], $27::uuid[], $28::smallint[])
            as c (downstream, flow, id, outcome)
        cross join lateral (
            select s.ctid from {schema}.edge s where s.flow = c.flow and s.id = c.id offset 0
        ) f
        where (c.downstream in (select gone.id from gone)) is true
    ) g
    where t.ctid = g.place
),
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select
        coalesce(c.flow, ($30::uuid[])[1]), c.id, coalesce(c.number, ($32::integer[])[1]),
        coalesce(c.kind, ($33::smallint[])[1]),
        case cardinality($34::smallint[]) when 1 then ($34::smallint[])[1] else c.outcome end,
        coalesce(c.spared, ($35::boolean[])[1])
    from unnest(
        coalesce($29::uuid[], $1::uuid[]), $30::uuid[], coalesce($31::uuid[], $1::uuid[]),
        $32::integer[], $33::smallint[], $34::smallint[], $35::boolean[]
    ) as c (by, flow, id, number, kind, outcome, spared)
    where (c.by in (select gone.id from gone)) is true
    on conflict (flow, id, number, kind) do nothing
)
select gone.id from gone
