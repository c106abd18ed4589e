-- Budgets and what was spent of them.

-- name: ledger
-- Each row says what it is (first column): 0 a budget, 1 a charge, 2 a ledger, 3 a reservation.
with recursive wanted (name) as (
    select n collate "C" from unnest($1::text[]) as n
    union
    select b.parent
    from wanted
    cross join lateral (
        select t.parent from {schema}.budget t where t.name = wanted.name offset 0
    ) b
    where b.parent is not null
)
select 0 as kind, b.name, null::text as key, b.version, null::uuid as id, b.doc
from wanted
cross join lateral (
    select * from {schema}.budget t where t.name = wanted.name offset 0
) b
union all
select 1, c.budget, c.key, null, null, c.doc
from unnest($2::text[], $3::text[]) as a (budget, key)
cross join lateral (
    select * from {schema}.charge t where t.budget = a.budget and t.key = a.key offset 0
) c
union all
select 2, l.budget, null, null, l.execution, l.doc
from {schema}.ledger l where l.execution = any($4::uuid[])
union all
select 3, null, null, null, r.id, r.doc
from {schema}.reservation r where r.execution = any($4::uuid[])
union all
select 3, null, null, null, r.id, r.doc
from {schema}.reservation r where r.id = any($5::uuid[])

-- name: new_budgets
insert into {schema}.budget (name, version, parent, scope, scope_id, next_reset_at, doc)
select * from unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bytea[]
)
on conflict (name) do nothing
returning name

-- name: posted
-- Compared under lock, in the order of names; a statement that waited for a lock finds another
-- version, and everything else depends on the versions. A reservation to delete must exist. Returns
-- whether all versions were current, and the transaction, whose fate can be asked after a lost reply.
with locked as materialized (
    select b.name, b.version from {schema}.budget b
    where b.name = any($1::text[])
    order by b.name
    for no key update
),
returned as materialized (
    select r.id from {schema}.reservation r
    where r.id = any($3::uuid[])
    order by r.id
    for update
),
compared as materialized (
    select (
        select count(*) from unnest($1::text[], $2::bigint[]) as g (name, version)
        join locked on locked.name = g.name and locked.version = g.version
    ) = cardinality($1) and (select count(*) from returned) = cardinality($3) as stands
),
changed as (
    update {schema}.budget t
    set version = g.version, parent = g.parent, scope = g.scope, scope_id = g.scope_id,
        next_reset_at = g.next_reset_at, doc = g.doc
    from (
        select f.ctid as place, n.*
        from unnest(
            $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::bytea[]
        ) as n (name, version, parent, scope, scope_id, next_reset_at, doc)
        cross join lateral (
            select b.ctid from {schema}.budget b where b.name = n.name offset 0
        ) f
    ) g
    where t.ctid = g.place and (select compared.stands from compared)
),
removed as (
    delete from {schema}.budget
    where name = any($11::text[]) and (select compared.stands from compared)
),
removed_ledgers as (
    delete from {schema}.ledger
    where budget = any($11) and (select compared.stands from compared)
),
removed_charges as (
    delete from {schema}.charge
    where budget = any($11) and (select compared.stands from compared)
),
made_ledgers as (
    insert into {schema}.ledger (budget, execution, doc)
    select n.budget, n.execution, n.doc
    from unnest($12::text[], $13::uuid[], $14::bytea[]) as n (budget, execution, doc)
    where (select compared.stands from compared)
    on conflict (execution, budget) do update set doc = excluded.doc
),
gone_ledgers as (
    delete from {schema}.ledger t
    using (
        select f.ctid as place
        from unnest($15::text[], $16::uuid[]) as n (budget, execution)
        cross join lateral (
            select l.ctid from {schema}.ledger l
            where l.execution = n.execution and l.budget = n.budget offset 0
        ) f
    ) g
    where t.ctid = g.place and (select compared.stands from compared)
),
made_charges as (
    insert into {schema}.charge (budget, key, until, doc)
    select n.budget, n.key, n.until, n.doc
    from unnest($17::text[], $18::text[], $19::bigint[], $20::bytea[])
        as n (budget, key, until, doc)
    where (select compared.stands from compared)
    on conflict (budget, key) do update set until = excluded.until, doc = excluded.doc
),
made_reservations as (
    insert into {schema}.reservation (id, execution, epoch, doc)
    select n.id, n.execution, n.epoch, n.doc
    from unnest($21::uuid[], $22::uuid[], $23::integer[], $24::bytea[])
        as n (id, execution, epoch, doc)
    where (select compared.stands from compared)
    on conflict (id) do update
    set execution = excluded.execution, epoch = excluded.epoch, doc = excluded.doc
),
gone_reservations as (
    delete from {schema}.reservation
    where id = any($3) and (select compared.stands from compared)
)
select compared.stands, cast(pg_current_xact_id() as text) from compared

-- name: this_transaction
select cast(pg_current_xact_id() as text)

-- name: committed
-- Whether any of these transactions was: asked when its reply was lost.
select bool_or(pg_xact_status(cast(x as xid8)) = 'committed') from unnest($1::text[]) as x

-- name: trimmed_charges
-- The array is made once. A plain `in (select … limit …)` may be planned as a loop that runs the
-- query again for each row, and then deletes more than the limit.
delete from {schema}.charge where ctid = any(array(
    select c.ctid from {schema}.charge c where c.until <= $1
    order by c.until limit $2 for update skip locked
))
returning key
