-- Quotas, the queues before them, and letting work through. Gate 8 is the limits gate.

-- name: new_queues
insert into {schema}.queue (quota, id, uses, key)
select * from unnest($1::text[], $2::bigint[], $3::bytea[], $4::text[])
on conflict (quota, id) do nothing

-- part: may_be_taken
-- Of one that waits, `p`: whether any worker could take it now. Routes of $3 are closed; of those of $4
-- nothing begins.
cardinality($3::integer[]) + cardinality($4::integer[]) = 0 or (
    select e.route <> all($3) and (e.route <> all($4) or p.start not in (0, 2))
    from {schema}.execution e where e.id = p.id
)

-- name: quota_view
-- Everything a release decides on, as one moment saw it. Each row says what it is (first column):
-- 0 a quota, 1 a line, 2 one who waits in it, 3 how many slots a queue has, 4 an admission, 5 the
-- latest turn of a quota, 6 one of a line with more than were read, whose attempt goes on.
-- The first of each line of $2 are read at once: those of an ending rarely have any.
-- Slots of all queues of a quota are counted from the slots there are, if these are no more than
-- $6, and queue by queue otherwise. Who cannot be taken is passed over: routes of $3, and of $4 what
-- would begin.
with first as materialized (
    select a.n as queue, w.id, w.version, w.rank, w.start
    from (select distinct n from unnest($2::bigint[]) as u (n)) a
    cross join lateral (
        select p.id, p.version, p.rank, p.start from {schema}.parked p
        where p.queue = a.n and p.gate = 8 and (
            -- include: may_be_taken
        )
        order by p.rank, p.id
        limit $8
    ) w
),
line as materialized (
    select k.id, k.turn, k.uses
    from (
        (
            select q.id, q.turn, q.uses
            from {schema}.queue q
            cross join lateral (
                select from {schema}.parked p
                where p.queue = q.id and p.gate = 8 and (
                    -- include: may_be_taken
                )
                limit 1
            ) w
            where $2::bigint[] is null and q.quota = $1
            order by q.turn, q.id
            limit $7
        )
        union all
        (
            select q.id, q.turn, q.uses
            from (select distinct first.queue from first) a
            cross join lateral (
                select t.id, t.turn, t.uses from {schema}.queue t
                where t.quota = $1 and t.id = a.queue offset 0
            ) q
        )
    ) k
    order by k.turn, k.id
    limit $7
),
waiting as materialized (
    select line.id as queue, w.id, w.version, w.rank, w.start
    from line
    cross join lateral (
        select p.id, p.version, p.rank, p.start from {schema}.parked p
        where p.queue = line.id and p.gate = 8 and (
            -- include: may_be_taken
        )
        order by p.rank, p.id
        limit $8
    ) w
    where $2::bigint[] is null
    union all
    select first.queue, first.id, first.version, first.rank, first.start from first
),
used as materialized (
    select distinct q.quota, q.key
    from line
    cross join lateral (
        select t.quota, t.key from {schema}.queue t where t.id = line.id offset 0
    ) q
),
rule as materialized (
    select
        q.name, q.version, q.doc,
        d.doc ->> 'concurrency' is not null and exists (select from line) as capped,
        d.doc ->> 'concurrency_per_key' is not null as capped_per_key,
        greatest(
            cast(d.doc -> 'rate' ->> 'window' as bigint),
            cast(d.doc -> 'rate_per_key' ->> 'window' as bigint)
        ) as longest
    from (select $1::text as quota union select used.quota from used) n
    cross join lateral (
        select * from {schema}.quota t where t.name = n.quota offset 0
    ) q
    cross join lateral (select {schema}.readable_json(q.doc) as doc offset 0) d
),
slot as materialized (
    select s.queue
    from (
        select r.queue from {schema}.ready r where r.queue is not null
        union all
        select l.queue from {schema}.lease l where l.queue is not null
    ) s
    limit $6 + 1
),
slots as materialized (
    select s.queue, s.number, sum(s.number) over () <= $6 as all_seen
    from (select slot.queue, count(*) as number from slot group by slot.queue) s
),
counted as materialized (
    select q.id, q.uses, s.number
    from rule
    cross join lateral (select * from slots where rule.capped and slots.all_seen offset 0) s
    cross join lateral (
        select t.id, t.uses from {schema}.queue t
        where t.quota = rule.name and t.id = s.queue offset 0
    ) q
    union all
    select q.id, q.uses, (
        select count(*) from {schema}.ready r where r.queue = q.id
    ) + (
        select count(*) from {schema}.lease l where l.queue = q.id
    )
    from rule
    cross join lateral (
        select t.id, t.uses from {schema}.queue t
        where rule.capped and (select not bool_and(slots.all_seen) from slots)
            and t.quota = rule.name
        union all
        select f.id, f.uses
        from used
        cross join lateral (
            select t.id, t.uses from {schema}.queue t
            where t.quota = used.quota and (t.key, t.id) > (used.key, -1) and t.key <= used.key
            order by t.key, t.id
        ) f
        where rule.capped_per_key and not rule.capped and used.quota = rule.name
    ) q
)
select
    0 as kind, rule.name, null::text as key, rule.version as a, null::bigint as b, null::bigint as c,
    null::smallint as d, null::uuid as id, rule.doc
from rule
union all
select 5, n.quota, null, t.turn, null, null, null, null, null
from (select $1::text as quota union select used.quota from used) n
cross join lateral (
    select q.turn from {schema}.queue q
    where q.quota = n.quota
    order by q.quota desc, q.turn desc
    limit 1
) t
union all
select 1, null, null, line.id, line.turn, null, null, null, line.uses from line
union all
select 2, null, null, w.queue, w.version, w.rank, w.start, w.id, null from waiting w
union all
select 6, null, null, m.queue, w.version, w.rank, w.start, w.id, null
from (
    select waiting.queue from waiting group by waiting.queue having count(*) >= $8
) m
cross join lateral (
    select p.id, p.version, p.rank, p.start from {schema}.parked p
    where p.queue = m.queue and p.gate = 8 and p.start = 4 and (
        -- include: may_be_taken
    )
    order by p.rank, p.id
    limit $8
) w
union all
select 3, null, null, counted.id, counted.number, null, null, null, counted.uses from counted
where counted.number > 0
union all
select 4, rule.name, k.key, a.at, a.count, null, null, null, null
from rule
cross join lateral (
    select '' as key
    union all
    select '=' || used.key from used where used.quota = rule.name
) k
cross join lateral (
    select t.at, t.count from {schema}.admission t
    where t.quota = rule.name and (t.key, t.at) > (k.key, $5::bigint - rule.longest)
        and t.key <= k.key
    order by t.key, t.at
) a
where rule.longest is not null

-- part: admitted_rows
-- What was `moved` from `parked` is ready, held by a grant that was not redeemed
-- (`core.execution.model.granted_hold`). The moment of admission takes the place of the creation in the rank.
made_ready as (
    insert into {schema}.ready (
        id, version, epoch, rank, flags, attempt, start, life, route, timeout, held_until, held_for, queue
    )
    select
        m.id, m.version + 1, m.epoch, m.rank - m.created_at + m.moment, m.flags, m.attempt, m.start,
        m.life, m.route, m.timeout, coalesce(cast(h.doc ->> 'expires_at' as bigint), 0),
        h.doc ->> 'worker', m.queue
    from moved m
    left join lateral (
        select case when m.life is not null then {schema}.readable_json(m.life) -> 'grant' end as doc
        offset 0
    ) h on coalesce(h.doc ->> 'kind', 'claim') <> 'reclaim'
        and coalesce(cast(h.doc ->> 'epoch' as bigint), 0) = m.epoch
),

-- name: served_lines
-- View, decision (`core.limit.release.serve`) and release of the lines $2 of a quota that limits the
-- concurrency of each key and nothing else: no row for another one. What is read is of the moment
-- when the statement began, so the version that is locked must be the one of that moment; without a
-- version in the answer it was not, and nothing is written. Only releases take slots, and each moves the
-- version: a count can be too high, never too low. Free slots that the caller knows ($7) are not
-- counted; what it knows is of the version $8, so nothing is done at another one. Routes of $3 are passed over, and of $4 what would
-- begin. 8192 turns are one millisecond, and moments are at most ten seconds ahead of the clock $5.
with seen as materialized (
    select q.version, cast(d.doc ->> 'concurrency_per_key' as bigint) as cap, greatest(
        cast(d.doc ->> 'since' as bigint) * 8192,
        (
            select t.turn from {schema}.queue t
            where t.quota = $1 order by t.quota desc, t.turn desc limit 1
        ),
        0
    ) as turn
    from {schema}.quota q
    cross join lateral (select {schema}.readable_json(q.doc) as doc offset 0) d
    where q.name = $1 and d.doc ->> 'concurrency_per_key' is not null
        and coalesce(d.doc ->> 'concurrency', d.doc ->> 'rate', d.doc ->> 'rate_per_key') is null
),
locked as materialized (
    select q.version from {schema}.quota q
    where q.name = $1 and exists (select from seen)
    for no key update
),
rule as materialized (
    select
        seen.version, seen.cap, seen.turn,
        case when seen.turn < $5::bigint * 8192 then $5::bigint else seen.turn / 8192 + 1 end as moment
    from seen join locked on locked.version = seen.version
    where seen.version = coalesce($8, seen.version)
),
line as materialized (
    select q.id, q.turn, coalesce(n.room, rule.cap - cast(h.held as bigint)) as room
    from rule
    cross join unnest($2::bigint[], $7::bigint[]) as n (id, room)
    cross join lateral (
        select t.id, t.turn, t.key from {schema}.queue t
        where t.quota = $1 and t.id = n.id offset 0
    ) q
    cross join lateral (
        select sum((
            select count(*) from {schema}.ready r where r.queue = t.id
        ) + (
            select count(*) from {schema}.lease l where l.queue = t.id
        )) as held
        from {schema}.queue t
        where n.room is null
            and t.quota = $1 and (t.key, t.id) > (q.key, -1) and t.key <= q.key
    ) h
),
picked as materialized (
    select
        line.id as queue, line.turn, w.place, w.id, first_value(w.rank) over each as first,
        row_number() over each as number
    from line
    cross join lateral (
        select p.ctid as place, p.id, p.rank from {schema}.parked p
        where p.queue = line.id and p.gate = 8 and (
            -- include: may_be_taken
        )
        order by p.rank, p.id
        limit greatest(0, line.room)
    ) w
    window each as (partition by line.id order by w.rank, w.id)
),
ordered as materialized (
    select p.queue, p.place, p.id, row_number() over turns as number, lag(p.id) over turns as before
    from picked p
    window turns as (order by p.number, p.turn, p.first, p.queue)
    limit $6
),
timed as materialized (
    select o.queue, o.place, o.number, rule.moment + count(*) filter (where o.id < o.before) over (
        order by o.number rows unbounded preceding
    ) as moment
    from rule cross join ordered o
),
gone as (
    delete from {schema}.parked t
    using (
        select timed.place, least(timed.moment, $5::bigint + 10000) as moment from timed
    ) g
    where t.ctid = g.place
    returning t.*, g.moment
),
moved as materialized (
    select g.*, e.route, e.created_at from gone g join {schema}.execution e on e.id = g.id
),
-- include: admitted_rows
counted as (
    update {schema}.quota set version = version + 1
    where name = $1 and exists (select from rule)
),
last as materialized (
    select timed.queue, timed.number + 8192 * least(
        timed.moment, greatest(rule.moment, $5::bigint + 10000)
    ) as turn
    from rule cross join timed
    order by timed.number desc
    limit 1
),
kept as (
    update {schema}.queue t set turn = last.turn from last
    where t.quota = $1 and t.id = last.queue
)
select
    rule.version + 1 as version, coalesce((select last.turn from last), rule.turn) as turn,
    array(select line.id from line) as lines, array(select line.room from line) as rooms,
    array(select picked.queue from picked) as picked, array(select moved.queue from moved) as moved
from seen left join rule on true

-- name: released
-- Compared under lock, in the order of names; a statement that waited for a lock finds another
-- version, and everything else depends on the versions. Parked rows are never changed in place, so that one
-- found by its place is the one that was compared, or gone. The rows of a queue move or go only
-- when a version moves as well, so their places stand too; all of them must be there, because a
-- slot of a queue without rows would not be counted. The moment of admission takes the place of the
-- creation in the rank. The first column tells whether all that stood.
with locked as materialized (
    select q.name, q.version from {schema}.quota q
    where q.name = any($1::text[])
    order by q.name
    for no key update
),
same as materialized (
    select count(*) = cardinality($1) as stand
    from unnest($1::text[], $2::bigint[]) as g (name, version)
    left join locked on locked.name = g.name
    where coalesce(locked.version, 0) = g.version
),
kept as materialized (
    select f.ctid as place, s.turn
    from unnest($5::text[], $6::bigint[], $7::bigint[]) as s (quota, id, turn)
    cross join lateral (
        select q.ctid from {schema}.queue q where q.quota = s.quota and q.id = s.id offset 0
    ) f
    where (select same.stand from same)
),
compared as materialized (
    select same.stand and (select count(*) from kept) = cardinality($5) as stands from same
),
counted as (
    update {schema}.quota set version = version + 1
    where name = any($1) and (select compared.stands from compared)
),
gone as (
    delete from {schema}.parked t
    using (
        select f.ctid as place, m.moment
        from unnest($3::uuid[], $4::integer[], $14::bigint[]) as m (id, version, moment)
        cross join lateral (
            select p.ctid from {schema}.parked p
            where p.id = m.id and p.version = m.version and p.gate = 8 offset 0
        ) f
    ) g
    where t.ctid = g.place and (select compared.stands from compared)
    returning t.*, g.moment
),
moved as materialized (
    select g.*, e.route, e.created_at from gone g join {schema}.execution e on e.id = g.id
),
-- include: admitted_rows
served as (
    update {schema}.queue t set turn = kept.turn from kept
    where t.ctid = kept.place and (select compared.stands from compared)
),
admitted as (
    insert into {schema}.admission (quota, key, at, count)
    select a.quota, a.key, a.at, a.count
    from unnest($8::text[], $9::text[], $10::bigint[], $11::integer[]) as a (quota, key, at, count)
    where (select compared.stands from compared)
    on conflict (quota, key, at) do update set count = admission.count + excluded.count
),
forgotten as (
    delete from {schema}.admission
    where (select compared.stands from compared) and ctid = any(array(
        select f.ctid
        from unnest($12::text[], $13::bigint[]) as g (quota, moment)
        cross join lateral (
            select t.ctid from {schema}.admission t
            where t.quota = g.quota and t.at <= g.moment
            order by t.at
            limit 2000
        ) f
    ))
)
select compared.stands, moved.id from compared left join moved on true

-- name: released_before
-- Of a release that may have been written before its reply was lost: whether each quota has the
-- next version, and who is ready that was to be let through.
select compared.stands, f.id
from (
    select count(*) = cardinality($1::text[]) as stands
    from unnest($1::text[], $2::bigint[]) as g (name, version)
    cross join lateral (
        select from {schema}.quota q where q.name = g.name and q.version = g.version + 1
        union all
        select where g.version = 0
    ) q
) compared
left join lateral (
    select r.id
    from unnest($3::uuid[], $4::integer[]) as m (id, version)
    cross join lateral (
        select t.id from {schema}.ready t
        where t.id = m.id and t.version = m.version + 1 offset 0
    ) r
) f on true

-- name: locked_quotas
select name from {schema}.quota where name = any($1::text[]) order by name for no key update

-- name: taken_back_starts
-- The quotas are locked by the statement before: no other session writes their admissions. Each
-- row counts one at least, so that no more rows are looked at than starts are taken back.
with counted as materialized (
    select
        a.place, a.count,
        b.number - (sum(a.count) over (partition by b.quota, b.key order by a.at) - a.count) as asked
    from unnest($1::text[], $2::text[], $3::bigint[], $4::integer[])
        as b (quota, key, since, number)
    cross join lateral (
        select t.ctid as place, t.at, t.count from {schema}.admission t
        where t.quota = b.quota and t.key = b.key and t.at >= b.since
        order by t.at limit b.number
    ) a
),
gone as (
    delete from {schema}.admission
    where ctid = any(array(select place from counted where counted.asked >= counted.count))
)
update {schema}.admission t set count = t.count - c.asked
from counted c
where t.ctid = c.place and c.asked > 0 and c.asked < c.count

-- name: crowds
-- From one queue to the next, however many wait in each.
with recursive crowd (queue, gate, first) as (
    (
        select p.queue, p.gate, p.id from {schema}.parked p
        where p.queue > $1::bigint order by p.queue, p.rank, p.id limit 1
    )
    union all
    select n.queue, n.gate, n.id
    from crowd c
    cross join lateral (
        select p.queue, p.gate, p.id from {schema}.parked p
        where p.queue > c.queue order by p.queue, p.rank, p.id limit 1
    ) n
)
select
    c.queue, c.gate, c.first,
    (select q.uses from {schema}.queue q where q.id = c.queue limit 1)
from crowd c limit $2

-- name: waiting_in
select p.id from {schema}.parked p where p.queue = $1 order by p.rank, p.id limit $2

-- name: queue_counts
select q.uses, c.waiting, c.ready + c.running, c.running
from {schema}.queue q
cross join lateral (
    select
        (select count(*) from {schema}.parked p where p.queue = q.id) as waiting,
        (select count(*) from {schema}.ready r where r.queue = q.id) as ready,
        (select count(*) from {schema}.lease l where l.queue = q.id) as running
    offset 0
) c
where q.quota = $1 and c.waiting + c.ready + c.running > 0
order by q.id
limit $2

-- name: ahead_of
select count(*) from (
    select from {schema}.parked p
    where p.queue = $1 and (p.rank, p.id) < ($2::bigint, $3::uuid)
    order by p.rank, p.id
    limit $4
) n

-- name: idle_queues
-- Queues without waiting executions and without slots in use, with each of their quotas.
select q.quota, q.id from {schema}.queue q
where q.id = any(array(
    select distinct i.id from {schema}.queue i
    where not exists (select from {schema}.parked p where p.queue = i.id)
        and not exists (select from {schema}.ready r where r.queue = i.id)
        and not exists (select from {schema}.lease l where l.queue = i.id)
    limit $1
))

-- name: trimmed_queues
-- Those of the queues $2 that still are idle. Their quotas $1 are locked by the statement before, so
-- that no run gets a slot of such a queue meanwhile: it would not be counted. All rows of a queue go
-- together: with some of them its slots would count for some quotas only. The versions move, so that a
-- release which has seen the rows is refused: a run may have come to wait since this statement began.
with gone as (
    delete from {schema}.queue t
    where t.id = any($2::bigint[])
        and not exists (select from {schema}.parked p where p.queue = t.id)
        and not exists (select from {schema}.ready r where r.queue = t.id)
        and not exists (select from {schema}.lease l where l.queue = t.id)
    returning t.id
),
counted as (
    update {schema}.quota set version = version + 1
    where name = any($1::text[]) and exists (select from gone)
)
select gone.id from gone

-- name: trimmed_admissions
-- From one quota with admissions to the next; one that is gone, or has no rate, reaches none.
with recursive named (quota) as (
    (select a.quota from {schema}.admission a order by a.quota limit 1)
    union all
    select n.quota
    from named
    cross join lateral (
        select a.quota from {schema}.admission a
        where a.quota > named.quota order by a.quota limit 1
    ) n
)
delete from {schema}.admission t
where t.ctid = any(array(
    select f.ctid
    from named
    left join lateral (
        -- Nothing is forgotten of one that cannot be read.
        select case when d.doc is null then $1::bigint else greatest(
            cast(d.doc -> 'rate' ->> 'window' as bigint),
            cast(d.doc -> 'rate_per_key' ->> 'window' as bigint)
        ) end as longest
        from (
            select {schema}.readable_json(q.doc) as doc
            from {schema}.quota q where q.name = named.quota offset 0
        ) d
    ) r on true
    cross join lateral (
        select a.ctid from {schema}.admission a
        where a.quota = named.quota and a.at <= coalesce($1::bigint - r.longest, $1::bigint)
        order by a.at
        limit $2
    ) f
    limit $2
))
returning t.at

-- name: wait_counts
-- By gate and queue; the first row is of the ready ones.
with wanted as materialized (
    select r.number from {schema}.route r
    where r.lane = $1 and ($2::text is null or r.namespace = $2)
)
select null::smallint as gate, null::bigint as queue, (
    select count(*) from (
        select from {schema}.ready q
        where q.lost is null and q.route in (select wanted.number from wanted)
        limit $3
    ) n
) as number
union all
select w.gate, w.queue, least(count(*), $3)
from {schema}.parked w
join {schema}.execution e on e.id = w.id
join wanted on wanted.number = e.route
where w.gate <> 20
group by w.gate, w.queue
