-- Output streams of attempts.

-- name: written_frames
-- The lease is locked as for other side writes. A new stream is inserted, a known one is changed if
-- it still has the version it was decided on; frames follow those that were written.
with held as (
    select g.*
    from unnest(
        $1::uuid[], $2::integer[], $3::integer[], $4::bytea[], $5::bytea[], $6::bigint[],
        $7::uuid[], $8::integer[], $9::integer[]
    ) as g (id, attempt, version, doc, summary, expires_at, claim, epoch, expected)
    join {schema}.lease l
        on l.id = any(array[g.id]) and l.claim = g.claim and l.epoch = g.epoch
        and l.attempt = g.attempt and l.expires_at > $10
    for key share of l
),
begun as (
    insert into {schema}.stream (id, attempt, version, doc, summary, expires_at)
    select h.id, h.attempt, h.version, h.doc, h.summary, h.expires_at
    from held h where h.expected = 0
    on conflict (id, attempt) do nothing
    returning id, attempt
),
grown as (
    update {schema}.stream s set
        version = h.version, doc = h.doc, summary = coalesce(h.summary, s.summary),
        expires_at = h.expires_at
    from held h
    where s.id = h.id and s.attempt = h.attempt and s.version = h.expected and h.expected > 0
    returning s.id, s.attempt
),
written as (
    select b.id, b.attempt from begun b
    union all
    select g.id, g.attempt from grown g
),
framed as (
    insert into {schema}.frame (id, attempt, ms, seq, mode, number, head, payload)
    select f.id, f.attempt, f.ms, f.seq, f.mode, f.number, f.head, f.payload
    from unnest(
        $11::uuid[], $12::integer[], $13::bigint[], $14::bigint[], $15::smallint[],
        $16::bigint[], $17::bytea[], $18::bytea[]
    ) as f (id, attempt, ms, seq, mode, number, head, payload)
    join written w on w.id = f.id and w.attempt = f.attempt
)
select w.id, w.attempt from written w

-- name: trimmed_frames
-- In the transaction that wrote the frames, after it. From the gap of a mode on, where its oldest
-- frames are.
with gone as (
    delete from {schema}.frame f
    using (
        select o.place
        from unnest($1::uuid[], $2::integer[], $3::smallint[], $4::bigint[], $5::bigint[])
            as t (id, attempt, mode, through, most)
        left join {schema}.frame_gap g
            on g.id = t.id and g.attempt = t.attempt and g.mode = t.mode
        cross join lateral (
            select o.ctid as place from {schema}.frame o
            where o.id = t.id and o.attempt = t.attempt
                and (o.ms, o.seq) > (coalesce(g.ms, -1), coalesce(g.seq, -1))
                and o.mode = t.mode and o.number <= t.through
            order by o.ms, o.seq
            limit t.most
        ) o
    ) d
    where f.ctid = d.place
    returning f.id, f.attempt, f.mode, f.ms, f.seq
)
-- include: remembered_gaps

-- part: remembered_gaps
insert into {schema}.frame_gap (id, attempt, mode, ms, seq)
select distinct on (g.id, g.attempt, g.mode) g.id, g.attempt, g.mode, g.ms, g.seq
from gone g
order by g.id, g.attempt, g.mode, g.ms desc, g.seq desc
on conflict (id, attempt, mode) do update set ms = excluded.ms, seq = excluded.seq

-- name: streams_of
select s.id, s.attempt, s.version, s.doc, s.summary, s.expires_at
from unnest($1::uuid[], $2::integer[]) as k (id, attempt)
join {schema}.stream s on s.id = k.id and s.attempt = k.attempt

-- name: frames_between
-- For each query its header (kind 0), its gaps (kind 1) and its frames (kind 2), of one moment.
with asked as (
    select * from unnest(
        $1::uuid[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::boolean[], $8::integer[]
    ) with ordinality
    as a (id, attempt, first_ms, first_seq, last_ms, last_seq, live, most, at)
)
select
    a.at, 0 as kind, s.attempt, s.version, s.expires_at as ms, null::bigint as seq,
    s.doc as head, null::bytea as payload
from asked a
cross join lateral (
    select h.* from {schema}.stream h where h.id = a.id and h.attempt = a.attempt offset 0
) s
union all
select a.at, 1, g.mode, null, g.ms, g.seq, null, null
from asked a
cross join lateral (
    select h.* from {schema}.frame_gap h where h.id = a.id and h.attempt = a.attempt offset 0
) g
union all
select a.at, 2, f.mode, null, f.ms, f.seq, f.head, f.payload
from asked a
cross join lateral (
    select h.* from {schema}.frame h
    where h.id = a.id and h.attempt = a.attempt
        and (h.ms, h.seq) >= (a.first_ms, a.first_seq) and (h.ms, h.seq) <= (a.last_ms, a.last_seq)
        and (a.live or h.mode <> 2)
    order by h.ms, h.seq
    limit a.most
) f
order by 1, 2, 5, 6

-- name: stream_marks
select
    a.id,
    coalesce(
        (select l.version from {schema}.lease l where l.id = a.id),
        (select r.version from {schema}.ready r where r.id = a.id),
        (select p.version from {schema}.parked p where p.id = a.id),
        (select d.version from {schema}.done d where d.id = a.id)
    ),
    array(select s.attempt from {schema}.stream s where s.id = a.id order by s.attempt),
    array(select s.version from {schema}.stream s where s.id = a.id order by s.attempt)
from unnest($1::uuid[]) as a (id)

-- name: expiring_streams
-- Locked and looked at again: one that was appended to meanwhile does not expire.
select s.id, s.attempt from {schema}.stream s
where s.expires_at <= $1 order by s.expires_at limit $2
for update skip locked

-- name: expired_frames
-- In the transaction that holds those streams.
with due as (
    select * from unnest($1::uuid[], $2::integer[]) as d (id, attempt)
),
settled as (
    update {schema}.stream s set expires_at = null
    from due d where s.id = d.id and s.attempt = d.attempt
),
gone as (
    delete from {schema}.frame f
    using due d where f.id = d.id and f.attempt = d.attempt
    returning f.id, f.attempt, f.mode, f.ms, f.seq
)
-- include: remembered_gaps

-- name: trimmed_streams
delete from {schema}.stream where id = any($1::uuid[])

-- name: trimmed_stream_frames
delete from {schema}.frame where id = any($1::uuid[])

-- name: trimmed_stream_gaps
delete from {schema}.frame_gap where id = any($1::uuid[])
