-- part: wanted_events
-- Those of the window `v` that pass the filter.
left join execution as e on e.id = v.id
where (e.id is not null or v.namespace is not null)
    and (
        :routes is null
        or v.namespace = :namespace
        or e.route in (select value from json_each(:routes))
    )
    and (:kinds is null or v.kind in (select value from json_each(:kinds)))
    and (
        :tag_key is null
        or exists (select 1 from tag where id = v.id and key = :tag_key and value = :tag_value)
    )
limit :limit

-- name: events_after
-- Order of numbers is order of commits here, so a plain cursor skips nothing. The window is read
-- in its own order and no further than needed, so nothing is sorted outside of it. Events of the
-- worker registry have no execution but a namespace of their own.
select
    v.seq, v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail, e.route, e.flow, v.namespace
from (
    select seq, id, at, kind, epoch, attempt, worker, detail, namespace from event
    where seq > :after order by seq limit :window
) as v
-- include: wanted_events

-- name: events_of
select
    v.seq, v.id, v.at, v.kind, v.epoch, v.attempt, v.worker, v.detail, e.route, e.flow, v.namespace
from (
    select seq, id, at, kind, epoch, attempt, worker, detail, namespace from event
    where id = :id and namespace is null and seq > :after order by seq limit :window
) as v
-- include: wanted_events

-- name: last_window_event
select max(seq) from (select seq from event where seq > :after order by seq limit :window)

-- name: last_window_event_of
select max(seq) from (
    select seq from event where id = :id and seq > :after order by seq limit :window
)

-- name: last_event
-- Also when the newest events have been deleted.
select coalesce(max(seq), 0) from sqlite_sequence where name = 'event'

-- name: forgotten_event
select seq from forgotten
