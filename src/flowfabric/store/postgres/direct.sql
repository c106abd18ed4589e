-- Changes that need no transaction of their own: one statement compares, moves and writes the rest.
-- Rows of `parked` and `ready` are never changed in place, so a row found by its place is the one
-- that was compared, or gone. A statement that had to wait for a lock finds the row gone and writes
-- nothing for it. Only the session that locks the row writes its edges and signals: while the row
-- exists, its edges keep their places.

-- name: readied_directly
-- From `parked` to `ready`.
with gone as (
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
made_ready as (
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life,
        route, timeout, held_until, held_for, lost, queue
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
        g.route, g.timeout, g.held_until, g.held_for, g.lost, g.queue
    from gone g
),
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from unnest(
        $16::uuid[], $17::bigint[], $18::smallint[], $19::integer[], $20::integer[],
        $21::integer[], $22::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select gone.id from gone)) is true
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
        where (c.downstream in (select gone.id from gone)) is true
    ) g
    where t.ctid = g.place
),
owed as (
    insert into {schema}.chore (flow, id, number, kind, outcome, spared)
    select c.flow, c.id, c.number, c.kind, c.outcome, c.spared
    from unnest(
        $27::uuid[], $28::uuid[], $29::uuid[], $30::integer[], $31::smallint[],
        $32::smallint[], $33::boolean[]
    ) as c (by, flow, id, number, kind, outcome, spared)
    where (c.by in (select gone.id from gone)) is true
    on conflict (flow, id, number, kind) do nothing
)
select gone.id from gone

-- name: ended_directly
-- From `ready` or `parked` to `done`; a version is in one place only.
with given as materialized (
    select * from unnest(
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
    select v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from unnest(
        $18::uuid[], $19::bigint[], $20::smallint[], $21::integer[], $22::integer[],
        $23::integer[], $24::bytea[]
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
    insert into {schema}.chore (flow, id, number, kind, outcome, spared)
    select c.flow, c.id, c.number, c.kind, c.outcome, c.spared
    from unnest(
        $29::uuid[], $30::uuid[], $31::uuid[], $32::integer[], $33::smallint[],
        $34::smallint[], $35::boolean[]
    ) as c (by, flow, id, number, kind, outcome, spared)
    where (c.by in (select gone.id from gone)) is true
    on conflict (flow, id, number, kind) do nothing
)
select gone.id from gone
