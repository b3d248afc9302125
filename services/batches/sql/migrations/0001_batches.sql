-- Batches. Times are Unix seconds; flags are 0 or 1; JSON is text.
create table batches (
    batch_id text primary key,
    tenant text not null,
    request_id text,
    endpoint text not null,
    default_model text not null,
    model text not null,
    input_file_id text not null,
    input_blob_key text not null,
    line_count bigint not null,
    completion_window text not null,
    expedited integer not null,
    deterministic integer not null,
    defaults text not null,
    metadata text not null,
    output_expires_after_seconds bigint not null,
    status text not null,
    outcome text,
    plan text,
    submitted integer not null,
    settled integer not null,
    validation_losses integer not null,
    lease_owner text not null,
    lease_until double precision not null,
    errors text,
    error text,
    counts text not null,
    usage text,
    output_file_id text not null,
    error_file_id text not null,
    created_at double precision not null,
    expires_at double precision not null,
    in_progress_at double precision,
    finalizing_at double precision,
    completed_at double precision,
    failed_at double precision,
    expired_at double precision,
    cancelling_at double precision,
    cancelled_at double precision
);

create unique index batches_by_request on batches (tenant, request_id);
create index batches_by_time on batches (tenant, created_at, batch_id);
create index batches_unsettled on batches (lease_until) where settled = 0;
create index batches_active_by_file on batches (input_file_id) where settled = 0;
create index batches_validating on batches (status) where status = 'validating';

-- A batch id that is about to hold its input at files. Gone in the transaction that records the batch; what a kill leaves here
-- is a hold without a batch, to be released.
create table intents (
    batch_id text primary key,
    created_at double precision not null
);
