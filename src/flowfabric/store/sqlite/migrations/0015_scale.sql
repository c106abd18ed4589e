-- The key of the row's quota, so that a limit per key finds its queues without reading the others.
alter table queue add column key text not null default '';

update queue set key = coalesce(
    (
        select json_extract(u.value, '$[1]') from json_each(cast(queue.uses as text)) as u
        where json_extract(u.value, '$[0]') = queue.quota
    ),
    ''
)
where json_valid(cast(uses as text));

create index queue_key on queue (quota, key, id);
