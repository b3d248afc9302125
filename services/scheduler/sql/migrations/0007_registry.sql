-- Engines that are asked how they are instead of registering themselves, engines that were removed, and batches that keep to one
-- digest of a model.
alter table engines add column standing text not null default '';     -- the address where it is asked; empty: it registers itself
alter table engines add column removed text;                          -- the incarnation that was removed; null for none

create table pins (
  batch_id text not null references submissions (batch_id) on delete cascade,
  model text not null,
  digest text not null,
  primary key (batch_id, model)
);
