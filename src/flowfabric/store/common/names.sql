-- Names that have numbers, and what is kept once per database.

-- name: routes_after
select number, namespace, lane, kind, capabilities from {schema}.route
where number > $1 order by number

-- name: workers_after
select number, id, instance from {schema}.worker where number > $1 order by number

-- name: secret
-- And how far a promotion into this store is, if there was one.
select key, value from {schema}.meta where key in ('promotion', 'secret')

-- name: new_secret
insert into {schema}.meta (key, value) values ('secret', $1) on conflict do nothing

-- name: clock_correction
select value from {schema}.meta where key = 'clock'
