-- One execution as it stands, whichever table its state is in.

create view {schema}.snapshot as
select
    e.id, e.created_at, e.route as exec_route, e.policy, e.facts, e.flow,
    cast('ready' as text) as place, s.version, s.epoch, s.rank, s.flags, s.attempt, s.start,
    s.life,
    s.timeout, s.held_until, s.held_for, s.lost,
    cast(null as uuid) as claim, cast(null as integer) as worker,
    cast(null as bigint) as started_at, cast(null as bigint) as expires_at,
    cast(null as bigint) as times_out_at, cast(null as bigint) as renewed_at,
    cast(null as smallint) as gate, cast(null as bigint) as due_at,
    cast(null as bigint) as since, cast(null as bytea) as note,
    cast(null as smallint) as outcome, cast(null as bigint) as ended_at,
    cast(null as smallint) as pending, cast(null as bytea) as result
from {schema}.ready s join {schema}.execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'lease', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, s.expires_at, s.times_out_at, s.renewed_at,
    null, null, null, null,
    null, null, null, null
from {schema}.lease s join {schema}.execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'parked', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    s.timeout, null, null, null,
    null, null, null, null, null, null,
    s.gate, s.due_at, s.since, s.note,
    null, null, null, null
from {schema}.parked s join {schema}.execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'done', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, null, null, null,
    null, null, null, null,
    s.outcome, s.ended_at, s.pending, s.result
from {schema}.done s join {schema}.execution e on e.id = s.id;
