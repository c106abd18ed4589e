-- The worker registry.

-- name: presence
select doc from presence where namespace = :namespace and instance = :instance

-- name: presences
select doc from presence
where namespace = :namespace and instance > :after order by instance limit :limit

-- name: new_presence
insert into presence (namespace, instance, expires_at, doc)
values (:namespace, :instance, :expires_at, :doc)
on conflict (namespace, instance) do update set expires_at = excluded.expires_at, doc = excluded.doc
returning instance

-- name: changed_presence
update presence set expires_at = :expires_at, doc = :doc
where namespace = :namespace and instance = :instance
returning instance

-- name: dropped_presence
delete from presence where namespace = :namespace and instance = :instance returning instance

-- name: lapsed_presences
delete from presence where expires_at <= :now returning instance
