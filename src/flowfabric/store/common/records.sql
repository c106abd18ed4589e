-- Versioned records, one statement for every kind (`store.rows.record`): `RecordQueries` puts in
-- the table, its columns and the marks for values. {row} are the values of {key} and {columns}.

-- name: record_page
select {key}, version, doc from {table}
where ({key}) > ({after}){where}
order by {key} limit {1}

-- name: due_records
select {key}, version, doc from {table} where {due} <= {1} order by {due}, {key} limit {2}

-- name: next_due_record
select min({due}) from {table} where {due} is not null

-- name: new_record
-- A row of version 0 holds a place that nothing was ever written to.
insert into {table} as t ({key}, {columns}) values ({row})
on conflict ({key}) do update set ({columns}) = ({excluded}) where t.version = 0
returning version

-- name: changed_record
update {table} set ({columns}) = ({values}) where ({key}) = ({keys}) and version = {expected}
returning version

-- name: dropped_record
delete from {table} where ({key}) = ({keys}) and version = coalesce({next}, version)
returning version

-- name: dropped_owned
delete from {owned} where {owner} = {1}

-- name: expired_records
delete from {table} where {due} <= {1} returning {key}, version, doc
