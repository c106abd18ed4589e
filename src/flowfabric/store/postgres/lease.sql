-- What owners do: renew, end, write beside their lease.

-- name: renewed_leases
-- The version stays: a renewal only extends a lease, and no decision depends on it.
update {schema}.lease l
set expires_at = greatest(l.expires_at, $5::bigint + g.ttl), renewed_at = $5
from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bigint[]) as g (id, claim, epoch, ttl)
where l.id = any(array[g.id]) and l.claim = g.claim and l.epoch = g.epoch and l.expires_at > $5
returning l.id, l.expires_at

-- name: recorded_renewals
-- The same, with the event (7) of those that ask for it.
with renewed as (
    update {schema}.lease l
    set expires_at = greatest(l.expires_at, $6::bigint + g.ttl), renewed_at = $6
    from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bigint[], $5::boolean[])
        as g (id, claim, epoch, ttl, record)
    where l.id = any(array[g.id]) and l.claim = g.claim and l.epoch = g.epoch and l.expires_at > $6
    returning l.id, l.expires_at, l.epoch, l.attempt, l.worker, g.record
),
told as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker)
    select r.id, $6, 7, r.epoch, r.attempt, r.worker from renewed r where r.record
)
select r.id, r.expires_at from renewed r

-- part: ended_rows
-- A life of NULL keeps the one of the lease, an empty one clears it. The one event an ending
-- usually has tells of the lease itself and rides with it; where it is otherwise, `kind` is NULL
-- and the events follow by themselves. Of versions, epoch, claim, outcome and kind, what all share
-- comes as one element; an event without a moment is of the moment of its ending.
ended as (
    delete from {schema}.lease l
    using (
        select
            n.id, n.new_life, n.ended_at, n.result, n.detail,
            coalesce(n.event_at, n.ended_at) as event_at,
            case cardinality($2::integer[]) when 1 then ($2::integer[])[1] else n.version end
                as version,
            case cardinality($3::integer[]) when 1 then ($3::integer[])[1] else n.epoch end
                as epoch,
            case cardinality($4::uuid[]) when 1 then ($4::uuid[])[1] else n.claim end as claim,
            case cardinality($5::integer[]) when 1 then ($5::integer[])[1] else n.new_version end
                as new_version,
            case cardinality($7::smallint[]) when 1 then ($7::smallint[])[1] else n.outcome end
                as outcome,
            case cardinality($11::smallint[]) when 1 then ($11::smallint[])[1] else n.kind end
                as kind
        from unnest(
            $1::uuid[], $2::integer[], $3::integer[], $4::uuid[], $5::integer[], $6::bytea[],
            $7::smallint[], $8::bigint[], $9::bytea[], $10::bigint[], $11::smallint[], $12::bytea[]
        ) as n (
            id, version, epoch, claim, new_version, new_life, outcome, ended_at, result,
            event_at, kind, detail
        )
    ) g
    where l.id = any(array[g.id]) and l.version = g.version and l.epoch = g.epoch and l.claim = g.claim
        and l.expires_at > $13
    returning
        l.id, g.new_version, l.epoch, l.rank, l.flags, l.attempt, l.start, l.life, g.new_life,
        g.outcome, g.ended_at, l.claim, l.worker, l.started_at, g.result,
        g.event_at, g.kind, g.detail
),
settled as (
    insert into {schema}.done (
        id, version, epoch, rank, flags, attempt, start, life,
        outcome, ended_at, claim, worker, started_at, result
    )
    select
        e.id, e.new_version, e.epoch, e.rank, e.flags, e.attempt, e.start,
        case when e.new_life is null then e.life else nullif(e.new_life, ''::bytea) end,
        e.outcome, e.ended_at, e.claim, e.worker, e.started_at, e.result
    from ended e
),
told as (
    -- without nulls, as those of claims
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail, namespace)
    select
        e.id, e.event_at, e.kind, e.epoch, e.attempt, e.worker, coalesce(e.detail, ''::bytea), ''
    from ended e where e.kind is not null
)

-- part: more_events
told_more as (
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail)
    select v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from unnest(
        $14::uuid[], $15::bigint[], $16::smallint[], $17::integer[], $18::integer[],
        $19::integer[], $20::bytea[]
    ) as v (id, at, kind, epoch, attempt, worker, detail)
    where (v.id in (select ended.id from ended)) is true
)

-- part: outbox_rows
-- What all share of numbers, kinds, outcomes and marks comes as one element.
    select
        c.flow, c.id, coalesce(c.number, ($23::integer[])[1]), coalesce(c.kind, ($24::smallint[])[1]),
        case cardinality($25::smallint[]) when 1 then ($25::smallint[])[1] else c.outcome end,
        coalesce(c.spared, ($26::boolean[])[1])
    from unnest(
        $21::uuid[], $22::uuid[], $23::integer[], $24::smallint[], $25::smallint[], $26::boolean[]
    ) as c (flow, id, number, kind, outcome, spared)

-- name: ended_plainly
-- Endings that owe flows nothing and have no more than the event that rides with each.
with
-- include: ended_rows
select ended.id from ended

-- name: ended_leases
with
-- include: ended_rows
,
-- include: more_events
,
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    -- include: outbox_rows
    where (c.id in (select ended.id from ended)) is true
)
select ended.id from ended

-- name: ended_with_downstreams
-- Downstreams go on with the endings they have counted.
with
-- include: ended_rows
,
-- include: more_events
,
before as (select null::integer[] as routes, null::bigint as rank, null::uuid as id),
-- include: downstreams_go_on
select ended.id, null::bytea as payload from ended
union all
select gone.id, null from gone

-- name: ended_and_claimed
-- The same. A downstream that `follows` becomes a lease of the worker that ends its upstream, in place
-- of a ready row, if this worker's next claim would take it. A statement of its own: without rows it
-- takes a tenth of a millisecond longer.
with
-- include: ended_rows
,
-- include: more_events
,
call as not materialized (
    select
        $56::integer[] as routes, $57::integer as newest, $58::text as name,
        $59::uuid as id, $60::integer as worker, $61::bigint as ttl
),
-- include: next_claim
,
-- include: downstreams_go_on
,
-- include: followers_leased
select ended.id, null::bytea as payload from ended
union all
select gone.id, (
    select e.payload from {schema}.execution e where gone.follows and e.id = gone.id
)
from gone

-- name: ended_in_chains
-- What `ended_and_claimed` does, in three quarters of its time, where every ending has at most one edge to
-- settle: $14 is the downstream that each lets go on, if it does, $15 its flow. A downstream keeps what
-- `parked` has of it but for its version and life; an ending owes its flow nothing but itself.
with
-- include: ended_rows
,
call as not materialized (
    select
        $19::integer[] as routes, $20::integer as newest, $21::text as name,
        $22::uuid as id, $23::integer as worker, $24::bigint as ttl
),
-- include: next_claim
,
links as materialized (
    select
        n.id, n.downstream, n.flow, coalesce(n.number, ($5::integer[])[1]) as number,
        coalesce(n.outcome, ($7::smallint[])[1]) as outcome,
        coalesce(n.expected, ($16::integer[])[1]) as expected,
        coalesce(n.life, ($17::bytea[])[1]) as life
    from unnest(
        $1::uuid[], $5::integer[], $7::smallint[], $14::uuid[], $15::uuid[], $16::integer[],
        $17::bytea[]
    ) as n (id, number, outcome, downstream, flow, expected, life)
    where n.flow is not null and (n.id in (select ended.id from ended)) is true
),
gone as (
    delete from {schema}.parked t
    using (
        select
            f.ctid as place, o.place as edge, m.outcome, f.id, f.version + 1 as version, f.epoch, f.rank,
            f.flags, f.attempt, f.start, m.life, f.timeout, e.route, e.payload,
            null::bigint as queue,
            (e.route = any(b.routes) and (b.rank is null or (f.rank, f.id) < (b.rank, b.id))) is true
                as follows
        from before b
        cross join links m
        cross join lateral (
            -- as in downstreams_go_on: no other edge is open
            select min(s.ctid) as place, count(*) as open from {schema}.edge s
            where s.flow = m.flow and (s.upstream, s.id) >= (m.id, $18) and s.upstream <= m.id
                and s.outcome is null
        ) o
        cross join lateral (
            select p.ctid, p.* from {schema}.parked p
            where p.id = m.downstream and p.version = m.expected
            for update skip locked
        ) f
        cross join lateral (
            select x.route, x.payload from {schema}.execution x where x.id = m.downstream offset 0
        ) e
        where m.downstream is not null and o.open = 1
    ) g
    where t.ctid = g.place
    returning g.*
),
made_ready as (
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life, route, timeout, held_until
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life, g.route, g.timeout, 0
    from gone g where not g.follows
),
edges_settled as (
    update {schema}.edge t set outcome = g.outcome from gone g where t.ctid = g.edge
),
owed as (
    insert into {schema}.flow_outbox (flow, id, number, kind, outcome, spared)
    select m.flow, m.id, m.number, 1, m.outcome, false from links m
),
-- include: followers_leased
select ended.id, null::bytea as payload from ended
union all
select gone.id, case when gone.follows then gone.payload end from gone

-- part: next_claim
-- What a claim of the `call` would look at, and take before a downstream: its routes, as far as they
-- are open and the newest one is known to it, and the best row that is ready.
open as materialized (
    select r.number, (
        select case when l.concurrency is null then l.state else 2 end
        from {schema}.route t join {schema}.lane l on l.name = t.lane
        where t.number = r.number and (l.state <> 0 or l.concurrency is not null)
    ) as state
    from call c cross join unnest(c.routes) as r (number)
),
before as materialized (
    select array(
        select open.number from open
        where open.state is null
            and not exists (select from open s where s.state = 2)
            and not exists (select from {schema}.route r where r.number > c.newest)
    ) as routes, best.rank, best.id
    from call c
    left join lateral (
        select q.rank, q.id
        from open
        cross join lateral (
            select q.rank, q.id from {schema}.ready q
            where q.route = open.number and (q.held_until <= $13 or q.held_for = c.name)
                and (q.flags & 64) = 0
            order by q.rank, q.id
            limit 1
        ) q
        where open.state is null
        order by q.rank, q.id
        limit 1
    ) best on true
)

-- part: followers_leased
given_out as (
    select
        g.*, c.id as claim, c.worker, $13::bigint as taken_at, $13::bigint + c.ttl as expires_at
    from gone g cross join call c where g.follows
),
-- include: leases_of_given

-- part: downstreams_go_on
-- Downstreams that wait go on with the endings they have counted: each if all of those were written,
-- none of them has more open edges than it was given (NULL: they were read just now), and its version
-- stands. Equality as in edges_out. One that another session has locked is left alone, so that endings never
-- wait for each other. Rows of `parked` are never changed in place, and only the session that locks
-- one writes its edges (see direct.sql). What all share of columns that are never NULL where they are
-- used comes as one element. `before` is what a claim would look at, and take before a downstream.
staying as materialized (
    select u.downstream
    from unnest($46::uuid[], $47::uuid[], $48::uuid[], $49::integer[])
        as u (downstream, upstream, flow, open)
    where (u.upstream in (select ended.id from ended)) is not true
        or coalesce(u.open, ($49::integer[])[1]) < (
            select count(*) from {schema}.edge e
            where e.flow = u.flow and (e.upstream, e.id) >= (u.upstream, $54)
                and e.upstream <= u.upstream and e.outcome is null
        )
),
gone as (
    delete from {schema}.parked t
    using (
        select
            f.ctid as place, m.id, m.rank, m.life, m.timeout, m.queue, m.held_for,
            m.gate, m.due_at, m.since, m.note,
            coalesce(m.version, ($28::integer[])[1]) as version,
            coalesce(m.epoch, ($29::integer[])[1]) as epoch,
            coalesce(m.flags, ($31::smallint[])[1]) as flags,
            coalesce(m.attempt, ($32::integer[])[1]) as attempt,
            coalesce(m.start, ($33::smallint[])[1]) as start,
            coalesce(m.route, ($37::integer[])[1]) as route,
            coalesce(m.held_until, ($38::bigint[])[1]) as held_until,
            coalesce(m.lost, ($40::smallint[])[1]) as lost,
            (
                coalesce(m.following, ($55::boolean[])[1])
                and coalesce(m.route, ($37::integer[])[1]) = any(b.routes)
                and (b.rank is null or (m.rank, m.id) < (b.rank, b.id))
            ) is true as follows
        from before b
        cross join unnest(
            $27::uuid[], $28::integer[], $29::integer[], $30::bigint[], $31::smallint[],
            $32::integer[], $33::smallint[], $34::bytea[], $35::bigint[], $36::bigint[],
            $37::integer[], $38::bigint[], $39::text[], $40::smallint[],
            $41::smallint[], $42::bigint[], $43::bigint[], $44::bytea[], $45::integer[],
            $55::boolean[]
        ) as m (
            id, version, epoch, rank, flags, attempt, start, life, timeout, queue,
            route, held_until, held_for, lost, gate, due_at, since, note, expected, following
        )
        cross join lateral (
            select p.ctid from {schema}.parked p
            where p.id = m.id and p.version = coalesce(m.expected, ($45::integer[])[1])
            for update skip locked
        ) f
        where (m.id in (select staying.downstream from staying)) is not true
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
    from gone g where g.gate is null and not g.follows
),
parked_again as (
    insert into {schema}.parked (
        id, version, epoch, rank, flags, attempt, start, life,
        timeout, gate, due_at, since, note, queue
    )
    select
        g.id, g.version, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
        g.timeout, g.gate, g.due_at, g.since, g.note, g.queue
    from gone g where g.gate is not null
),
edges_settled as (
    update {schema}.edge t set outcome = g.outcome
    from (
        select f.ctid as place, coalesce(c.outcome, ($53::smallint[])[1]) as outcome
        from unnest($50::uuid[], $51::uuid[], $52::uuid[], $53::smallint[])
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
    -- include: outbox_rows
    where (c.id in (select ended.id from ended union all select gone.id from gone)) is true
)

-- name: progress_writes
-- The lease is locked against being ended or lost, not against being renewed. What all share of
-- claims, epochs and the columns of a step comes as one element.
with held as (
    select
        l.id, l.attempt, g.percent, g.message, g.state_value,
        case cardinality($7::integer[]) when 1 then ($7::integer[])[1] else g.generation end
            as generation,
        case cardinality($8::text[]) when 1 then ($8::text[])[1] else g.name end as name,
        case cardinality($9::integer[]) when 1 then ($9::integer[])[1] else g.occurrence end
            as occurrence,
        case cardinality($10::integer[]) when 1 then ($10::integer[])[1] else g.position end
            as position,
        g.doc
    from unnest(
        $1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::text[],
        $6::bytea[], $7::integer[], $8::text[], $9::integer[], $10::integer[], $11::bytea[]
    ) as g (
        id, claim, epoch, percent, message, state_value, generation, name, occurrence, position, doc
    )
    join {schema}.lease l
        on l.id = any(array[g.id]) and l.claim = coalesce(g.claim, ($2::uuid[])[1])
        and l.epoch = coalesce(g.epoch, ($3::integer[])[1]) and l.expires_at > $12
    for key share of l
),
recorded as (
    insert into {schema}.step (id, generation, name, occurrence, position, doc)
    select h.id, h.generation, h.name, h.occurrence, h.position, h.doc
    from held h where h.name is not null
    on conflict (id, generation, name, occurrence) do nothing
),
reported as (
    insert into {schema}.progress (id, attempt, percent, message, state_value, at)
    select h.id, h.attempt, h.percent, h.message, h.state_value, $12
    from held h
    where h.percent is not null or h.message is not null or h.state_value is not null
    on conflict (id, attempt) do update set
        percent = coalesce(excluded.percent, progress.percent),
        message = coalesce(excluded.message, progress.message),
        state_value = coalesce(excluded.state_value, progress.state_value),
        at = excluded.at
)
select distinct held.id from held
