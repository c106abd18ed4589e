-- Taking work, for one call or for several that differ only in worker, claim, limit and ttl. Of the
-- calls, $3 has the worker ids, each once, and $5 the sum of the limits; $6, $7, $8 and $10 have one
-- element per call: claim, number of the worker, ttl, and how many rows the calls before it ask for.
-- A ttl that all calls share is given once, and $10 is empty if every call asks for one row.
-- What is taken goes to the calls in their order. A row that is held for one of several workers is
-- not for the others: then nothing is taken, the column `held` says so, and each call asks alone.
--
-- Where it says that the mark of a suspect (64) is not null, which is always true, the
-- store puts in that it is set or is not, for calls that take only suspects or none.

-- name: waiting_routes
-- Of the given routes those whose best is among the best: no other can have one of the first $4
-- rows, so that a worker of very many routes merges few and still takes in claim order.
with held as materialized (
    select x.route, count(*) as number from {schema}.lease x where x.ctid >= '(0,0)' group by x.route
),
filled as materialized (
    select l.name from {schema}.lane l
    where l.concurrency is not null and l.concurrency <= (
        select coalesce(sum(held.number), 0)
        from {schema}.route t cross join held where t.lane = l.name and held.route = t.number
    )
)
select r.number
from unnest($1::integer[]) as r (number)
left join lateral (
    select l.name, l.state
    from {schema}.route t join {schema}.lane l on l.name = t.lane where t.number = r.number offset 0
) d on true
cross join lateral (
    (
        select q.rank, q.id from {schema}.ready q
        where d.state is distinct from 2
            and q.route = r.number and (q.held_until <= $2 or q.held_for = any($3::text[]))
            and (q.flags & 64) is not null
        order by q.rank, q.id
        limit 1
    )
    union all
    (
        select q.rank, q.id from {schema}.ready q
        where d.state = 2 and q.start <> 0 and q.start <> 2
            and q.route = r.number and (q.held_until <= $2 or q.held_for = any($3::text[]))
            and (q.flags & 64) is not null
        order by q.rank, q.id
        limit 1
    )
) best
where d.state is distinct from 1 and (d.name in (select filled.name from filled)) is not true
order by best.rank, best.id
limit $4

-- part: leases_of_taken
-- What `taken` has deleted becomes leases, with their events. `width_bucket` finds the call: it
-- counts those that begin at or before this place.
given_out as materialized (
    select
        n.*, ($6::uuid[])[n.call] as claim, ($7::integer[])[n.call] as worker, $2::bigint as taken_at,
        $2::bigint + coalesce(($8::bigint[])[n.call], ($8::bigint[])[1]) as expires_at
    from (
        select
            p.*,
            case
                when cardinality($10::bigint[]) = 0 then p.place::integer
                else width_bucket(p.place - 1, $10::bigint[])
            end as call
        from (
            select t.*, row_number() over (order by t.rank, t.id) as place from taken t
        ) p
    ) n
),
-- include: leases_of_given

-- part: leases_of_given
-- What `given_out` gives to workers, as rows that were ready, becomes leases with their events.
leased as (
    insert into {schema}.lease (
        id, version, epoch, rank, flags, attempt, start, life,
        claim, worker, started_at, expires_at, times_out_at, route, queue
    )
    select
        t.id, t.version + 1, t.epoch + (t.flags & 128 = 0)::integer, t.rank, t.flags, t.attempt,
        t.start, t.life, t.claim, t.worker, t.taken_at, t.expires_at, t.taken_at + t.timeout,
        t.route, t.queue
    from given_out t
),
claims_told as (
    -- claimed, or resumed (continue), or reclaimed; what is spent is taken to be given up. Without
    -- nulls a row is eight bytes smaller: empty is none.
    insert into {schema}.event (id, at, kind, epoch, attempt, worker, detail, namespace)
    select
        t.id, t.taken_at, case t.start when 4 then 2 when 3 then 3 else 1 end, t.epoch + 1, t.attempt,
        t.worker, ''::bytea, ''
    from given_out t
    where t.flags & 128 = 0
    order by t.rank, t.id
)

-- part: snapshots_of_taken
-- Beside `head`, which is one row: what was taken, as the view `snapshot` gives it, in any order, with
-- all generations of the steps of what has begun before: nothing if there are none, or many.
left join lateral (
    select
        e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
        'lease' as place, t.version + 1, t.epoch + (t.flags & 128 = 0)::integer, t.rank, t.flags,
        t.attempt, t.start, t.life,
        null::bigint, null::bigint, null::text, null::smallint,
        t.claim, t.worker, $2::bigint, t.expires_at, $2::bigint + t.timeout,
        null::bigint,
        null::smallint, null::bigint, null::bigint, null::bytea,
        null::smallint, null::bigint, null::smallint, null::bytea,
        e.payload,
        case when t.start <> 0 then (
            select row(
                array_agg(k.generation), array_agg(k.position), array_agg(k.name),
                array_agg(k.occurrence),
                array_agg(case when octet_length(k.doc) <= 16384 then k.doc end)
            )
            from (select p.* from {schema}.step p where p.id = t.id limit 33) k
            having count(*) <= 32 and sum(octet_length(k.doc)) <= 16384
        ) end
    from given_out t join {schema}.execution e on e.id = t.id
) s on true

-- name: taken_leases
-- Candidates are merged over the routes without locks, then locked by place; a row that moved or
-- was held meanwhile is skipped. The last five columns come also when nothing was taken: the
-- newest route there is, how many candidates there were, whether a suspect waits in any route,
-- whether any of the lanes drains or has a concurrency, and `held`. With such a lane nothing is
-- taken: `taken_leases_by_lane` can, and costs more. Nor is anything taken while there are routes above
-- $9, the newest one the caller knows: better work may be there. Of the routes it looks only at ranks
-- from $11 to below $12; with $13, `firsts` has for each of these parts the first rank there is a row
-- at (`low_water.py`).
with open as materialized (
    select r.number, r.low, r.high, r.place, (
        select case when l.concurrency is null then l.state else 2 end
        from {schema}.route t join {schema}.lane l on l.name = t.lane
        where t.number = r.number and (l.state <> 0 or l.concurrency is not null)
    ) as state
    from unnest($1::integer[], $11::bigint[], $12::bigint[])
        with ordinality as r (number, low, high, place)
),
special as materialized (
    select count(*) > 0 as found from open where open.state = 2
),
unknown as materialized (
    select count(*) > 0 as found from {schema}.route r where r.number > $9
),
picked as materialized (
    select c.at, c.held
    from open
    cross join lateral (
        select q.ctid as at, q.rank, q.id, q.held_until > $2 as held
        from {schema}.ready q
        where q.route = open.number and q.rank >= open.low and q.rank < open.high
            and (q.held_until <= $2 or q.held_for = any($3::text[]))
            and (q.flags & 64) is not null
        order by q.rank, q.id
        limit $4
    ) c
    where open.state is null
        and not (select special.found or unknown.found from special, unknown)
    order by c.rank, c.id
    limit $4
),
clash as materialized (
    select count(*) > 0 as found from picked where picked.held and cardinality($3::text[]) > 1
),
taken as (
    delete from {schema}.ready
    where ctid = any(array(
        select q.ctid from {schema}.ready q
        where q.ctid = any(array(
            select picked.at from picked where not (select clash.found from clash)
        ))
            and (q.held_until <= $2 or q.held_for = all($3::text[]))
        order by q.rank, q.id
        limit $5
        for update skip locked
    ))
    returning *
),
-- include: leases_of_taken
select s.*, head.newest, head.candidates, head.suspects, head.special, head.held, head.firsts
from (
    select
        (select max(number) from {schema}.route) as newest,
        (select count(*) from picked) as candidates,
        exists (select from {schema}.ready x where (x.flags & 64) <> 0) as suspects,
        (select special.found from special) as special,
        (select clash.found from clash) as held,
        case when $13::boolean then array(
            select (
                select q.rank from {schema}.ready q
                where q.route = open.number and q.rank >= open.low and q.rank < open.high
                order by q.rank, q.id
                limit 1
            )
            from open order by open.place
        ) end as firsts
) head
-- include: snapshots_of_taken

-- name: taken_leases_by_lane
-- The same where lanes drain or have a concurrency. A draining lane yields only started executions.
-- From a lane with a concurrency no more is picked than it has room for, and its row is written in
-- the same statement, so that no other claim took from it since the leases were counted: the row
-- would have another xmin by then, or be locked. Of such a lane nothing is taken; the last column
-- says that there is one, to be tried again. No lock outlives the statement. All leases are
-- counted, by place, which is the fastest way through a small table.
with held as materialized (
    select x.route, count(*) as number from {schema}.lease x where x.ctid >= '(0,0)' group by x.route
),
capped as materialized (
    select l.name, l.xmin as written, l.concurrency - (
        select coalesce(sum(held.number), 0)
        from {schema}.route t cross join held where t.lane = l.name and held.route = t.number
    ) as room
    from {schema}.lane l
    where l.concurrency is not null
),
given as materialized (
    select r.number, d.name, d.state, d.concurrency, d.room
    from unnest($1::integer[]) as r (number)
    left join lateral (
        select l.name, l.state, l.concurrency, (
            select capped.room from capped where capped.name = l.name
        ) as room
        from {schema}.route t join {schema}.lane l on l.name = t.lane
        where t.number = r.number offset 0
    ) d on true
),
unknown as materialized (
    select count(*) > 0 as found from {schema}.route r where r.number > $9
),
open as materialized (
    select * from given
    where given.state is distinct from 1 and (given.concurrency is null or given.room > 0)
        and not (select unknown.found from unknown)
),
picked as materialized (
    select c.at, c.held, case when c.room is not null then c.name end as capped
    from (
        select b.*, row_number() over (partition by b.name order by b.rank, b.id) as place
        from (
            select f.at, f.rank, f.id, f.held, open.name, open.room
            from open
            cross join lateral (
                select q.ctid as at, q.rank, q.id, q.held_until > $2 as held
                from {schema}.ready q
                where q.route = open.number and (q.held_until <= $2 or q.held_for = any($3::text[]))
                    and (q.flags & 64) is not null
                order by q.rank, q.id
                limit $4
            ) f
            where open.state is distinct from 2
            union all
            select f.at, f.rank, f.id, f.held, open.name, open.room
            from open
            cross join lateral (
                select q.ctid as at, q.rank, q.id, q.held_until > $2 as held
                from {schema}.ready q
                where q.route = open.number and q.start <> 0 and q.start <> 2
                    and (q.held_until <= $2 or q.held_for = any($3::text[]))
                    and (q.flags & 64) is not null
                order by q.rank, q.id
                limit $4
            ) f
            where open.state = 2
        ) b
    ) c
    where c.room is null or c.place <= c.room
    order by c.rank, c.id
    limit $4
),
clash as materialized (
    select count(*) > 0 as found from picked where picked.held and cardinality($3::text[]) > 1
),
wanted as materialized (
    select distinct picked.capped as name from picked
    where picked.capped is not null and not (select clash.found from clash)
),
locked as materialized (
    select l.name
    from {schema}.lane l join capped c on c.name = l.name and c.written = l.xmin
    where l.name in (select wanted.name from wanted)
    order by l.name
    for no key update of l skip locked
),
turned as (
    update {schema}.lane set state = lane.state
    where lane.name in (select locked.name from locked)
    returning lane.name
),
taken as (
    delete from {schema}.ready
    where ctid = any(array(
        select q.ctid from {schema}.ready q
        where q.ctid = any(array(
            select picked.at from picked
            where not (select clash.found from clash)
                and (picked.capped is null or picked.capped in (select turned.name from turned))
        ))
            and (q.held_until <= $2 or q.held_for = all($3::text[]))
        order by q.rank, q.id
        limit $5
        for update skip locked
    ))
    returning *
),
-- include: leases_of_taken
select s.*, head.newest, head.candidates, head.suspects, head.special, head.held, head.missed
from (
    select
        (select max(number) from {schema}.route) as newest,
        (select count(*) from picked) as candidates,
        exists (select from {schema}.ready x where (x.flags & 64) <> 0) as suspects,
        (
            select count(*) > 0 from given where given.state = 2 or given.concurrency is not null
        ) as special,
        (select clash.found from clash) as held,
        (select count(*) from wanted) > (select count(*) from turned) as missed
) head
-- include: snapshots_of_taken

-- name: walked_ready
-- How many entries of the index claims have read so far, and how many rows they found.
select
    pg_stat_get_tuples_returned(i.oid) as read, pg_stat_get_tuples_fetched(i.oid) as found
from (select '{schema}.ready_rank'::regclass::oid as oid) i

-- name: stray_ready
-- Of each part of a route (ranks from $3 to below $4) the first rank there is a row at, among those
-- in the table from place $1 on; how many blocks the table has, and about how many dead rows. By
-- place, because the index would lead through the very rows that are skipped.
with found as materialized (
    select q.route, q.rank from {schema}.ready q where q.ctid >= $1::tid
)
select
    pg_relation_size('{schema}.ready') / current_setting('block_size')::bigint as blocks,
    pg_stat_get_dead_tuples('{schema}.ready'::regclass) as dead, s.number, s.rank
from (select) one
left join (
    select d.number, d.low, min(found.rank) as rank
    from found
    join unnest($2::integer[], $3::bigint[], $4::bigint[]) as d (number, low, high)
        on found.route = d.number and found.rank >= d.low and found.rank < d.high
    group by d.number, d.low
) s on true

-- name: leases_by_claim
-- What earlier calls with these ids took and still hold.
select s.*, e.payload, null as steps
from {schema}.snapshot s join {schema}.execution e on e.id = s.id
where s.place = 'lease' and s.claim = any($1::uuid[]) and s.expires_at > $2
order by s.rank, s.id

-- name: claimed_payloads
-- Of these executions, those that a call with this id took and still holds.
select l.id, e.payload
from {schema}.lease l join {schema}.execution e on e.id = l.id
where l.id = any($1::uuid[]) and l.claim = $2

-- name: returned_leases
-- Rows that calls took and cannot read go back, hidden from all workers until a moment: no worker has
-- an empty name. The epoch stays used; a reclaimed execution is lost again.
with gone as (
    delete from {schema}.lease where id = any($1::uuid[]) and claim = any($2::uuid[]) returning *
)
insert into {schema}.ready (
    id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
)
select
    g.id, g.version + 1, g.epoch, g.rank, g.flags, g.attempt, g.start, g.life,
    g.route, g.times_out_at - g.started_at, $3, '', case when g.start = 3 then 0 end, g.queue
from gone g
