-- Model leases: the exclusive, expiring right to use a model.
create table model_leases (
  lease_id text primary key,
  tenant text not null,
  model text not null,                       -- its id, never an alias
  labels text not null,                      -- holder and metadata, a JSON array
  ttl_seconds integer not null,              -- as granted
  create_time double precision not null,
  expire_time double precision not null,
  batch_id text not null default '',         -- the batch that it was handed to
  ended text not null default '',            -- '', 'released', 'expired'
  end_time double precision,
  request_id text not null default '',       -- the caller's, what makes a repeat a repeat
  idempotency_key text not null default '',  -- the client's
  fingerprint text not null default ''       -- of the body that came with it
);

create unique index model_leases_active on model_leases (model) where ended = '';
create index model_leases_by_age on model_leases (tenant, create_time, lease_id);
create index model_leases_of_requests on model_leases (tenant, request_id) where request_id <> '';
create index model_leases_of_keys on model_leases (tenant, idempotency_key) where idempotency_key <> '';
create index model_leases_over on model_leases (end_time) where ended <> '';

-- Which schedulers respect a lease.
create table model_lease_views (
  lease_id text not null references model_leases (lease_id) on delete cascade,
  owner text not null,
  primary key (lease_id, owner)
);
