create table submissions (
  batch_id text primary key,
  submit_order bigint not null,           -- 1, 2, 3, … in the order of arrival
  tenant text not null,
  endpoint text not null,
  lane integer not null,                  -- haywain.engine.v1.Lane
  expire_at double precision,             -- Unix seconds
  input_key text not null,
  index_key text not null,
  row_count bigint not null,
  body_defaults text not null,            -- a JSON object, or empty
  deterministic integer not null,
  stop_reason integer not null default 0, -- haywain.scheduler.v1.StopBatchRequest.Reason; the first one stays
  start_time double precision,            -- when the first row was dispatched
  sealed text not null default ''         -- what sealing wrote, JSON; empty before
);

create table shards (
  batch_id text not null references submissions (batch_id) on delete cascade,
  shard integer not null,
  model text not null,
  first_row bigint not null,
  row_count bigint not null,
  state integer not null default 0,       -- 0 queued, 1 leased, 2 done
  epoch bigint not null default 0,        -- the fencing number: each claim adds one
  owner text not null default '',
  lease_until double precision not null default 0,
  primary key (batch_id, shard)
);

create index shards_open on shards (batch_id, model, shard) where state < 2;
create index shards_leased on shards (owner) where state = 1;

create table segments (
  batch_id text not null references submissions (batch_id) on delete cascade,
  shard integer not null,
  epoch bigint not null,
  seq bigint not null,
  object text not null,                   -- where the lines are
  start_byte bigint not null,             -- of the object, together with the segments of the same checkpoint
  end_byte bigint not null,
  completed bigint not null,
  failed bigint not null,
  input_tokens bigint not null,
  cached_tokens bigint not null,
  output_tokens bigint not null,
  reasoning_tokens bigint not null,
  primary key (batch_id, shard, epoch, seq)
);

create table engines (
  engine_id text primary key,
  description text not null,              -- haywain.engine.v1.Engine, JSON
  seen_at double precision not null       -- when it registered with this description
);
