-- What a doctor wants to know of the server. Catalogs and statistics only; nothing is locked.

-- name: server_settings
select name, setting, source from pg_settings
where name in (
    'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
    'max_connections', 'superuser_reserved_connections', 'autovacuum_freeze_max_age',
    'server_version'
)

-- name: server_state
select
    pg_is_in_recovery(), pg_notification_queue_usage(), age(d.datfrozenxid),
    quote_ident(d.datname), quote_ident(current_user)
from pg_database d where d.datname = current_database()

-- name: server_clients
select coalesce(nullif(application_name, ''), usename, 'unnamed'), count(*)
from pg_stat_activity where backend_type = 'client backend'
group by 1 order by 2 desc, 1

-- name: table_health
select
    c.relname, c.relpersistence = 'u',
    coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
    cast(extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))
        as double precision),
    age(c.relfrozenxid)
from pg_class c left join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = to_regnamespace('{schema}') and c.relkind = 'r'
order by c.relname

-- name: invalid_indexes
select c.relname
from pg_index x join pg_class c on c.oid = x.indexrelid
where c.relnamespace = to_regnamespace('{schema}') and not (x.indisvalid and x.indisready)
order by c.relname

-- name: snapshot_holders
-- What keeps dead rows from being removed: sessions, forgotten prepared transactions, replication
-- slots, standbys that give feedback. The oldest first.
select h.kind, h.pid, h.name, h.who, h.state, h.seconds, h.age, h.query
from (
    select
        'session' as kind, a.pid,
        coalesce(nullif(a.application_name, ''), 'unnamed') as name,
        concat(a.usename, ' from ', coalesce(host(a.client_addr), 'this machine')) as who,
        a.state,
        cast(extract(epoch from clock_timestamp() - a.xact_start) as double precision) as seconds,
        age(coalesce(a.backend_xmin, a.backend_xid)) as age,
        left(a.query, 200) as query
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid()
        and a.xact_start is not null and a.backend_type = 'client backend'
    union all
    select
        'prepared', null, p.gid, p.owner, 'prepared',
        cast(extract(epoch from clock_timestamp() - p.prepared) as double precision),
        age(p.transaction), ''
    from pg_prepared_xacts p where p.database = current_database()
    union all
    select
        'slot', s.active_pid, s.slot_name, s.slot_type, case when s.active then 'active' else 'unused' end,
        null, greatest(age(s.xmin), age(s.catalog_xmin)), ''
    from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
    union all
    select
        'standby', r.pid, coalesce(nullif(r.application_name, ''), 'unnamed'),
        coalesce(host(r.client_addr), 'this machine'), r.state, null, age(r.backend_xmin), ''
    from pg_stat_replication r where r.backend_xmin is not null
) h
order by h.seconds desc nulls last, h.age desc nulls last
limit 20

-- name: lock_waits
select
    a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
    cast(extract(epoch from clock_timestamp() - l.waitstart) as double precision),
    coalesce(cast(cast(l.relation as regclass) as text), l.locktype),
    b.pid, coalesce(nullif(b.application_name, ''), 'unnamed'), b.state, left(b.query, 200)
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
cross join lateral unnest(pg_blocking_pids(l.pid)) as h (pid)
left join pg_stat_activity b on b.pid = h.pid
where not l.granted and a.datname = current_database()
order by 3 desc nulls last
limit 20

-- What mends each trouble: printed, never run. What stands in braces is filled in.

-- name: mend_dropped_index
drop index if exists {schema}.{name}

-- name: mend_key
alter table {schema}.{table} add constraint {name} {key}

-- name: mend_invalid_index
reindex index concurrently {schema}.{name}

-- name: mend_setting
-- Of the server ("system"), or of a database or role, whose settings count more.
alter {whose} set {name} = {value}

-- name: mend_reload
select pg_reload_conf()

-- name: mend_options
alter table {schema}.{table} set ({options})

-- name: mend_autovacuum
alter table {schema}.{table} reset (autovacuum_enabled)

-- name: mend_dead_rows
vacuum (verbose) {schema}.{table}

-- name: mend_wraparound
vacuum (freeze, verbose) {schema}.{table}

-- name: mend_session
select pg_terminate_backend({pid})

-- name: mend_prepared
rollback prepared '{name}'

-- name: mend_slot
select pg_drop_replication_slot('{name}')

-- name: mend_unlogged
alter table {schema}.{table} set logged
