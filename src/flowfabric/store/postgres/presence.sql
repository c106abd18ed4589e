-- The worker registry.

-- name: presence
select doc from {schema}.presence where namespace = $1 and instance = $2

-- name: presences
select doc from {schema}.presence
where namespace = $1 and instance > $2 order by instance limit $3

-- name: new_presence
insert into {schema}.presence (namespace, instance, expires_at, doc) values ($1, $2, $3, $4)
on conflict (namespace, instance) do update set expires_at = excluded.expires_at, doc = excluded.doc
returning instance

-- name: changed_presence
update {schema}.presence set expires_at = $3, doc = $4
where namespace = $1 and instance = $2 returning instance

-- name: dropped_presence
delete from {schema}.presence where namespace = $1 and instance = $2 returning instance

-- name: lapsed_presences
delete from {schema}.presence where expires_at <= $1 returning instance
