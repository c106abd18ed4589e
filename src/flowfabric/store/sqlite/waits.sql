-- Waitpoints, signals and dedup records.

-- name: new_waitpoints
insert into waitpoint (id, waitpoint, attempt, doc) values (?, ?, ?, ?)
on conflict (id, waitpoint) do nothing

-- name: waitpoint_owners
select waitpoint, id from waitpoint indexed by waitpoint_of_attempt
where attempt is not null and waitpoint in (?)

-- name: new_signals
insert or fail into signal (id, number, waitpoint, suspension, doc) values (?, ?, ?, ?, ?)

-- name: counted_signals
update signal set suspension = ? where id = ? and number = ?

-- name: new_dedup_records
insert into dedup_record (id, key, until, doc) values (?, ?, ?, ?)
on conflict (id, key) do update set until = excluded.until, doc = excluded.doc

-- name: needed
-- Everything rules asked for: 1 waitpoints, 2 dedup records, 3 signals at a waitpoint after a
-- number, 4 edges of the execution's flow, 5 all edges into it, 6 as 3 but only the first 32. Left
-- alone, the planner reads all later signals of the execution.
with given (kind, id, key, taken) as (values (?, ?, ?, ?))
select 1, w.id, null, null, null, w.doc
from given as g cross join waitpoint as w on w.id = g.id and w.waitpoint = g.key
where g.kind = 1
union all
select 2, m.id, m.key, m.until, null, m.doc
from given as g cross join dedup_record as m on m.id = g.id and m.key = g.key
where g.kind = 2
union all
select 3, s.id, null, null, s.suspension, s.doc
from given as g cross join signal as s indexed by signal_waitpoint
    on s.id = g.id and s.waitpoint = g.key and s.number > g.taken
where g.kind = 3
union all
select 3, s.id, null, null, s.suspension, s.doc
from given as g cross join signal as s indexed by signal_waitpoint
    on s.id = g.id and s.waitpoint = g.key and s.number > g.taken and s.number <= coalesce(
        (
            select t.number from signal as t indexed by signal_waitpoint
            where t.id = g.id and t.waitpoint = g.key and t.number > g.taken
            order by t.number limit 1 offset 31
        ),
        9223372036854775807
    )
where g.kind = 6
union all
select 4, e.id, null, d.outcome, null, d.doc
from given as g cross join execution as e on e.id = g.id
cross join edge as d on d.flow = e.flow and d.id = g.key
where g.kind = 4
union all
select 4, e.id, null, d.outcome, null, d.doc
from given as g cross join execution as e on e.id = g.id
cross join edge as d indexed by edge_downstream on d.flow = e.flow and d.downstream = e.id
where g.kind = 5

-- name: signals_of
select doc, suspension from signal
where id = :id and number > :after
order by number limit :limit

-- name: signals_counted
select doc, suspension from signal indexed by signal_suspension
where id = :id and suspension = :suspension and number > :after
order by number limit :limit

-- name: suspended_executions
select p.id from parked as p
where p.gate = 20 and (p.since, p.id) > (:since, :id)
    and (
        :namespace is null or (select route from execution where id = p.id) in (
            select number from route where namespace = :namespace
        )
    )
order by p.since, p.id limit :limit
