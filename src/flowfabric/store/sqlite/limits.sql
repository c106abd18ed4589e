-- Quotas, the queues before them, and letting work through.

-- name: new_queues
insert into queue (quota, id, uses, key) values (?, ?, ?, ?)
on conflict (quota, id) do nothing

-- part: can_be_taken
-- Not on a route that is closed, nor to begin on one that drains.
        and (
            :closed = '[]' and :draining = '[]' or (
                select e.route not in (select value from json_each(:closed))
                    and (p.start not in (0, 2) or e.route not in (select value from json_each(:draining)))
                from execution as e where e.id = p.id
            )
        )

-- part: waiting_line
-- Queues `q` with a waiting execution that can be taken, the least recently served first.
    select 1 from parked as p
    where p.queue = q.id and p.gate = 8
        -- include: can_be_taken
)
order by q.turn, q.id
limit :limit

-- name: lines
select q.id, q.turn, q.uses from queue as q indexed by queue_turn
where q.quota = :quota and exists (
    -- include: waiting_line

-- name: lines_among
select q.id, q.turn, q.uses
from (select distinct value as id from json_each(:queues)) as wanted
cross join queue as q on q.quota = :quota and q.id = wanted.id
where exists (
    -- include: waiting_line

-- name: held_by_line
-- Of these queues of a quota, how many slots of its key are held, in all its lines.
select q.id, (
    select sum(
        (select count(*) from ready where queue = s.id)
        + (select count(*) from lease where queue = s.id)
    )
    from queue as s indexed by queue_key where s.quota = q.quota and s.key = q.key
)
from json_each(:queues) as wanted
cross join queue as q on q.quota = :quota and q.id = wanted.value

-- name: first_of_lines
-- The best :most of each of these queues.
select q.id, q.turn, p.rank, p.id
from json_each(:queues) as wanted
cross join queue as q on q.quota = :quota and q.id = wanted.value
cross join parked as p on p.id in (
    select p.id from parked as p
    where p.queue = q.id and p.gate = 8
        -- include: can_be_taken
    order by p.rank, p.id
    limit :most
)
order by q.id, p.rank, p.id

-- name: line_candidates
select p.id, p.version, p.rank, p.start from parked as p
where p.queue = :queue and p.gate = 8
        -- include: can_be_taken
order by p.rank, p.id
limit :limit

-- name: line_continuing
-- Those whose attempt goes on: a rate that is used up does not keep them.
select p.id, p.version, p.rank, p.start from parked as p
where p.queue = :queue and p.start = 4 and p.gate = 8
        -- include: can_be_taken
order by p.rank, p.id
limit :limit

-- name: latest_turns
-- The last entry of an index, however many queues there are.
select name, turn
from (
    select n.value as name, (
        select max(q.turn) from queue as q indexed by queue_turn where q.quota = n.value
    ) as turn
    from json_each(:names) as n
)
where turn is not null

-- name: held_queues
-- The queues of these quotas with slots in use, found from one to the next: only rows that hold a
-- slot are read, however many wait.
with recursive
in_ready (queue) as (
    select min(queue) from ready where queue >= 0
    union all
    select (select min(s.queue) from ready as s where s.queue > r.queue)
    from in_ready as r where r.queue is not null
),
in_lease (queue) as (
    select min(queue) from lease where queue >= 0
    union all
    select (select min(s.queue) from lease as s where s.queue > l.queue)
    from in_lease as l where l.queue is not null
),
held (queue) as (select queue from in_ready union select queue from in_lease)
select distinct
    h.queue, q.uses,
    (select count(*) from ready where queue = h.queue)
    + (select count(*) from lease where queue = h.queue)
from held as h
cross join json_each(:quotas) as wanted
cross join queue as q on q.quota = wanted.value and q.id = h.queue

-- name: held_by_key
-- The same of the queues with one of these pairs of quota and key.
select distinct
    q.id, q.uses,
    (select count(*) from ready where queue = q.id)
    + (select count(*) from lease where queue = q.id)
from json_each(:used) as u
cross join queue as q indexed by queue_key on q.quota = json_extract(u.value, '$[0]')
    and q.key = json_extract(u.value, '$[1]')

-- name: admissions
select at, count from admission
where quota = :quota and key = :key and at > :since
order by at

-- name: quota_versions
-- Those whose version does not stand; one that is not there has none.
with given (name, version) as (values (?, ?))
select g.name from given as g
left join quota as q on q.name = g.name
where coalesce(q.version, 0) <> g.version

-- name: occupied_queues
-- One of these queues in which a run waits.
select p.queue
from json_each(:queues) as wanted
cross join parked as p on p.queue = wanted.value and p.gate = 8
limit 1

-- name: missing_queues
with given (quota, id) as (values (?, ?))
select g.id from given as g
left join queue as q on q.quota = g.quota and q.id = g.id
where q.id is null

-- name: counted_quotas
update quota set version = version + 1 where name in (select value from json_each(:names))

-- part: made_ready
-- What still waits for its limits becomes ready, held by a grant that was not redeemed
-- (`core.execution.model.granted_hold`). The moment of admission takes the place of the creation in the
-- rank.
    p.id, p.version + 1, p.epoch, p.rank - e.created_at + g.at, p.flags, p.attempt, p.start, p.life,
    e.route, p.timeout, coalesce(json_extract(h.value, '$.expires_at'), 0),
    json_extract(h.value, '$.worker'), null, p.queue
from given as g
cross join parked as p on p.id = g.id and p.version = coalesce(g.version, p.version) and p.gate = 8
cross join execution as e on e.id = p.id
left join json_each(case when json_valid(cast(p.life as text)) then cast(p.life as text) end) as h
    on h.key = 'grant' and coalesce(json_extract(h.value, '$.kind'), 'claim') <> 'reclaim'
    and coalesce(json_extract(h.value, '$.epoch'), 0) = p.epoch

-- name: released
with given (id, version, at) as (values (?, ?, ?))
insert or fail into ready (
    id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
)
select distinct
    -- include: made_ready
returning id

-- name: released_of_lines
-- Those that were just read, so each is there, with any version. Telling which were moved would take
-- a quarter of the time.
with given (id, version, at) as (values (?, ?, ?))
insert or fail into ready (
    id, version, epoch, rank, flags, attempt, start, life,
    route, timeout, held_until, held_for, lost, queue
)
select
    -- include: made_ready

-- name: served_queues
update queue set turn = ? where quota = ? and id = ?

-- name: new_admissions
insert into admission (quota, key, at, count) values (?, ?, ?, ?)
on conflict (quota, key, at) do update set count = count + excluded.count

-- name: fewer_admissions
update admission set count = count - :fewer where quota = :quota and key = :key and at = :at

-- name: gone_admission
delete from admission where quota = :quota and key = :key and at = :at

-- name: forgotten_admissions
delete from admission where quota = ? and at <= ?

-- name: crowds
-- From one queue to the next, however many wait in each.
with recursive crowd (queue) as (
    select min(queue) from parked where queue > :after
    union all
    select (select min(p.queue) from parked as p where p.queue > c.queue)
    from crowd as c where c.queue is not null
    limit :limit
)
select c.queue, f.gate, f.id, (select q.uses from queue as q where q.id = c.queue limit 1)
from crowd as c
cross join parked as f on f.id = (
    select p.id from parked as p where p.queue = c.queue order by p.rank, p.id limit 1
)
order by c.queue

-- name: waiting_in
select id from parked where queue = :queue order by rank, id limit :limit

-- name: queue_counts
select
    q.uses,
    (select count(*) from (select 1 from parked where queue = q.id limit :most)),
    (select count(*) from (select 1 from ready where queue = q.id limit :most))
    + (select count(*) from (select 1 from lease where queue = q.id limit :most)),
    (select count(*) from (select 1 from lease where queue = q.id limit :most))
from queue as q
where q.quota = :quota
    and (
        exists (select 1 from parked where queue = q.id)
        or exists (select 1 from ready where queue = q.id)
        or exists (select 1 from lease where queue = q.id)
    )
order by q.id
limit :limit

-- name: ahead_of
select count(*) from (
    select 1 from parked where queue = :queue and (rank, id) < (:rank, :id) limit :limit
)

-- name: idle_queues
-- Queues without waiting executions and without slots in use.
select distinct q.id from queue as q
where not exists (select 1 from parked where queue = q.id)
    and not exists (select 1 from ready where queue = q.id)
    and not exists (select 1 from lease where queue = q.id)
limit :limit

-- part: still_idle
-- Checked again: an execution may have joined the queue since.
    and not exists (select 1 from parked where queue = :id)
    and not exists (select 1 from ready where queue = :id)
    and not exists (select 1 from lease where queue = :id)

-- name: counted_idle_queue
-- The versions of its quotas move: a process that knows the queue must not admit a run to it, because
-- a slot of a queue without rows is not counted.
update quota set version = version + 1
where name in (select quota from queue where id = :id)
-- include: still_idle

-- name: trimmed_queues
-- All rows of a queue are deleted together: with some of them its slots would count for some quotas
-- only.
delete from queue
where id = :id
-- include: still_idle

-- name: admission_quotas
-- The quotas with admissions, from one to the next, and what is known of them.
with recursive named (name) as (
    select min(quota) from admission
    union all
    select (select min(a.quota) from admission as a where a.quota > n.name)
    from named as n where n.name is not null
)
select n.name, q.version, q.doc
from named as n left join quota as q on q.name = n.name
where n.name is not null

-- name: trimmed_admissions
delete from admission where (quota, key, at) in (
    select quota, key, at from admission indexed by admission_at
    where quota = :quota and at <= :until
    limit :limit
)

-- name: wait_counts
-- By gate and queue; the last row is of the ready ones.
select s.gate, s.queue, min(count(*), :most)
from parked as s cross join execution as e on e.id = s.id
where s.gate <> 20 and e.route in (select value from json_each(:routes))
group by 1, 2
union all
select null, null, sum(n) from (
    select (
        select count(*) from (
            select 1 from ready where route = wanted.value and lost is null limit :most
        )
    ) as n
    from json_each(:routes) as wanted
)
