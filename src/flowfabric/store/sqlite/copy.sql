-- A SQLite file as one side of a copy.

-- name: found_columns
select m.name, c.name from sqlite_master as m cross join pragma_table_info(m.name) as c
where m.type = 'table' and m.name not like 'sqlite\_%' escape '\'

-- name: new_rows
insert into {table} ({columns}) values ({marks})

-- name: last_number
select seq from sqlite_sequence where name = :table

-- name: new_number
-- There is a row of the table once anything was ever inserted.
insert into sqlite_sequence (name, seq) values (:table, :number)

-- name: later_number
update sqlite_sequence set seq = max(seq, :number) where name = :table
