-- One execution as it stands, whichever table its state is in.

create view snapshot as
select
    e.id, e.created_at, e.route as exec_route, e.policy, e.facts, e.flow,
    'ready' as place, s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    s.timeout, s.held_until, s.held_for, s.lost,
    null as claim, null as worker, null as started_at,
    null as expires_at, null as times_out_at, null as renewed_at,
    null as gate, null as due_at, null as since, null as note,
    null as outcome, null as ended_at, null as pending, null as result
from ready s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'lease', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, s.expires_at, s.times_out_at, s.renewed_at,
    null, null, null, null,
    null, null, null, null
from lease s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'parked', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    s.timeout, null, null, null,
    null, null, null, null, null, null,
    s.gate, s.due_at, s.since, s.note,
    null, null, null, null
from parked s join execution e on e.id = s.id
union all
select
    e.id, e.created_at, e.route, e.policy, e.facts, e.flow,
    'done', s.version, s.epoch, s.rank, s.flags, s.attempt, s.start, s.life,
    null, null, null, null,
    s.claim, s.worker, s.started_at, null, null, null,
    null, null, null, null,
    s.outcome, s.ended_at, s.pending, s.result
from done s join execution e on e.id = s.id;
