-- Suspects (64): what was lost with its worker, until it has shown that a worker survives it. Few, and
-- looked for among very many.
create index ready_suspect on ready (route, rank, id) where flags & 64 <> 0;

-- Which attempt has reported: the next one begins without progress.
alter table progress add column attempt integer not null default 0;
