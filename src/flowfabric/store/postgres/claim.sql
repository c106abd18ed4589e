-- Taking work.

-- name: waiting_routes
-- Of the given routes those whose best is among the best: no other can have one of the first $4
-- rows, so that a worker of very many routes merges few and still takes in claim order.
select r.number
from unnest($1::integer[]) as r (number)
cross join lateral (
    select q.rank, q.id from {schema}.ready q
    where q.route = r.number and (q.held_until <= $2 or q.held_for = $3)
    order by q.rank, q.id
    limit 1
) best
where (
    select l.paused from {schema}.route t join {schema}.lane l on l.name = t.lane
    where t.number = r.number
) is not true
order by best.rank, best.id
limit $4

-- name: taken_leases
-- Candidates are merged over the routes without locks, then locked by place; a row that moved or
-- was held meanwhile is skipped. The last two columns come also when nothing was taken: the
-- newest route there is, and how many candidates there were.
with open as materialized (
    select r.number from unnest($1::integer[]) as r (number)
    where (
        select l.paused from {schema}.route t join {schema}.lane l on l.name = t.lane
        where t.number = r.number
    ) is not true
),
picked as materialized (
    select c.at
    from open
    cross join lateral (
        select q.ctid as at, q.rank, q.id from {schema}.ready q
        where q.route = open.number and (q.held_until <= $2 or q.held_for = $3)
        order by q.rank, q.id
        limit $4
    ) c
    order by c.rank, c.id
    limit $4
),
taken as (
    delete from {schema}.ready
    where ctid = any(array(
        select q.ctid from {schema}.ready q
        where q.ctid = any(array(select picked.at from picked))
            and (q.held_until <= $2 or q.held_for = $3)
        order by q.rank, q.id
        limit $5
        for update skip locked
    ))
    returning *
),
leased as (
    insert into {schema}.lease (
        id, version, epoch, rank, flags, attempt, start, life,
        claim, worker, started_at, expires_at, times_out_at
    )
    select
        t.id, t.version + 1, t.epoch + 1, t.rank, t.flags, t.attempt, t.start, t.life,
        $6, $7, $2, $2 + $8, $2 + t.timeout
    from taken t
),
told as (
    -- claimed, or resumed (continue), or reclaimed
    insert into {schema}.event (id, at, kind, epoch, attempt, worker)
    select
        t.id, $2, case t.start when 4 then 2 when 3 then 3 else 1 end, t.epoch + 1, t.attempt, $7
    from taken t
    order by t.rank, t.id
)
select s.*, head.newest, head.candidates
from (
    select
        (select max(number) from {schema}.route) as newest,
        (select count(*) from picked) as candidates
) head
left join lateral (
    select
        e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
        'lease' as place, t.version + 1, t.epoch + 1, t.rank, t.flags, t.attempt, t.start, t.life,
        null::bigint, null::bigint, null::text, null::smallint,
        $6::uuid, $7::integer, $2::bigint, $2::bigint + $8::bigint, $2::bigint + t.timeout,
        null::bigint,
        null::smallint, null::bigint, null::bigint, null::bytea,
        null::smallint, null::bigint, null::smallint, null::bytea,
        e.payload
    from taken t join {schema}.execution e on e.id = t.id
) s on true
order by s.rank, s.id

-- name: leases_by_claim
-- What an earlier call with this id took and still holds.
select s.*, e.payload
from {schema}.snapshot s join {schema}.execution e on e.id = s.id
where s.place = 'lease' and s.claim = $1 and s.expires_at > $2
order by s.rank, s.id
