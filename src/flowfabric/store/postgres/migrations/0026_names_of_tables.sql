-- Tables have the names that the code uses.
alter table {schema}.chore rename to flow_outbox;
alter table {schema}.flow_outbox rename constraint chore_pkey to flow_outbox_pkey;

alter table {schema}.mark rename to dedup_record;
alter table {schema}.dedup_record rename column mark to key;
alter table {schema}.dedup_record rename constraint mark_pkey to dedup_record_pkey;

alter table {schema}.arrival rename to submission_inbox;
alter table {schema}.submission_inbox
    rename constraint arrival_pkey to submission_inbox_pkey;
alter table {schema}.submission_inbox
    rename constraint arrival_kind_check to submission_inbox_kind_check;
alter table {schema}.submission_inbox
    rename constraint arrival_lane_check to submission_inbox_lane_check;
alter table {schema}.submission_inbox
    rename constraint arrival_namespace_check to submission_inbox_namespace_check;
alter index {schema}.arrival_order rename to submission_inbox_order;

-- Renamed and not created: roles of applications keep their right to call it.
alter function {schema}.arrive(
    uuid, bigint, text, text, text, text, bigint, bytea, bytea
) rename to put_in_inbox;

create or replace function {schema}.put_in_inbox(
    new_id uuid, new_at bigint, new_kind text, new_namespace text, new_lane text,
    new_key text, key_until bigint, new_options bytea, new_payload bytea
) returns table (run_id uuid, run_lane text)
language plpgsql as $$
declare
    holder uuid;
begin
    if new_key is not null then
        insert into {schema}.dedup as d (namespace, key, id, until)
        values (new_namespace, new_key, new_id, key_until)
        on conflict (namespace, key) do update
            set id = excluded.id, until = excluded.until where d.until <= new_at;
        select d.id into holder from {schema}.dedup d
        where d.namespace = new_namespace and d.key = new_key;
        if holder <> new_id then
            return query
                select holder, coalesce(
                    (select r.lane from {schema}.execution e
                     join {schema}.route r on r.number = e.route where e.id = holder),
                    (select a.lane from {schema}.submission_inbox a where a.id = holder),
                    new_lane);
            return;
        end if;
    end if;
    insert into {schema}.submission_inbox (id, at, kind, namespace, lane, options, payload)
    values (new_id, new_at, new_kind, new_namespace, new_lane, new_options, new_payload);
    perform pg_notify('{schema}_wake', '');
    return query select new_id, new_lane;
end
$$;

create or replace function {schema}.submit(
    task text, arguments jsonb default '{}', options jsonb default '{}'
) returns uuid
language plpgsql as $$
declare
    now_ms bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    window_ms bigint := coalesce((options -> 'policy' ->> 'dedup_window_ms')::bigint, 86400000);
    described jsonb := options - 'key' - 'lane' - 'namespace' - 'delay_ms' - 'deadline_ms';
    random_part text := replace(gen_random_uuid()::text, '-', '');
    fresh uuid := (
        lpad(to_hex(now_ms), 12, '0') || '7' || substr(random_part, 14, 3) || substr(random_part, 17)
    )::uuid;
begin
    if options ? 'delay_ms' then
        described := described || jsonb_build_object(
            'delay_until', now_ms + (options ->> 'delay_ms')::bigint);
    end if;
    if options ? 'deadline_ms' then
        described := described || jsonb_build_object(
            'deadline_at', now_ms + (options ->> 'deadline_ms')::bigint);
    end if;
    if options ? 'key' then
        described := described || jsonb_build_object('key', options ->> 'key');
    end if;
    return (
        select run_id from {schema}.put_in_inbox(
            fresh, now_ms, task, coalesce(options ->> 'namespace', 'default'),
            coalesce(options ->> 'lane', 'default'),
            case when window_ms > 0 then nullif(options ->> 'key', '') end, now_ms + window_ms,
            convert_to(described::text, 'UTF8'), convert_to(arguments::text, 'UTF8')));
end
$$;
