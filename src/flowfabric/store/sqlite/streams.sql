-- Output streams of attempts.

-- name: new_stream
insert into stream (id, attempt, version, doc, summary, expires_at) values (?, ?, ?, ?, ?, ?)
on conflict (id, attempt) do nothing

-- name: grown_stream
-- Only the version it was decided on; a summary of NULL keeps the stored one.
update stream set
    version = :version, doc = :doc, summary = coalesce(:summary, summary), expires_at = :expires_at
where id = :id and attempt = :attempt and version = :expected

-- name: new_frames
insert into frame (id, attempt, ms, seq, mode, number, head, payload)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- name: trimmed_frames
-- From the gap of the mode on, where its oldest frames are.
delete from frame where rowid in (
    select f.rowid from frame as f
    where f.id = :id and f.attempt = :attempt and f.mode = :mode and f.number <= :through
        and (f.ms, f.seq) > (
            coalesce((
                select g.ms from frame_gap as g
                where g.id = :id and g.attempt = :attempt and g.mode = :mode
            ), -1),
            coalesce((
                select g.seq from frame_gap as g
                where g.id = :id and g.attempt = :attempt and g.mode = :mode
            ), -1)
        )
    order by f.ms, f.seq
    limit :most
)
returning mode, ms, seq

-- name: new_gaps
insert into frame_gap (id, attempt, mode, ms, seq) values (?, ?, ?, ?, ?)
on conflict (id, attempt, mode) do update set ms = excluded.ms, seq = excluded.seq

-- name: streams_of
select attempt, version, doc, summary, expires_at
from stream where id = :id and attempt = :attempt

-- name: stream_header
select attempt, version, doc, null, expires_at
from stream where id = :id and attempt = :attempt

-- name: stream_gaps
select mode, ms, seq from frame_gap where id = :id and attempt = :attempt

-- name: frames_between
select f.ms, f.seq, f.mode, f.head, f.payload
from frame as f
where f.id = :id and f.attempt = :attempt
    and (f.ms, f.seq) >= (:first_ms, :first_seq) and (f.ms, f.seq) <= (:last_ms, :last_seq)
    and (:live or f.mode <> 2)
order by f.ms, f.seq
limit :limit

-- name: stream_versions
select id, attempt, version from stream where id in (?)

-- name: stream_marks
with given (id) as (values (?))
select
    g.id,
    coalesce(
        (select l.version from lease as l where l.id = g.id),
        (select r.version from ready as r where r.id = g.id),
        (select p.version from parked as p where p.id = g.id),
        (select d.version from done as d where d.id = g.id)
    )
from given as g

-- name: expiring_streams
select id, attempt from stream where expires_at <= ? order by expires_at limit ?

-- name: expired_frames
delete from frame where id = :id and attempt = :attempt
returning mode, ms, seq

-- name: expired_stream
update stream set expires_at = null where id = :id and attempt = :attempt

-- name: trimmed_streams
delete from stream where id in (?)

-- name: trimmed_stream_frames
delete from frame where id in (?)

-- name: trimmed_stream_gaps
delete from frame_gap where id in (?)
