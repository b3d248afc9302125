-- What a batch may bring with it (input lines of its own, lines that validation rejected), how many of its rows still wait, and the
-- answers that clients may ask for again.
alter table batches add column reject integer not null default 0;
alter table batches add column pack integer not null default 0;
alter table batches add column own_files text;
alter table batches add column adopted integer not null default 1;
alter table batches add column rows_left bigint not null default 0;

update batches set rows_left = line_count where status in ('validating', 'in_progress', 'finalizing', 'cancelling');

drop index batches_validating;
create index batches_validating on batches (line_count) where status = 'validating';
create index batches_rows_left on batches (rows_left) where settled = 0;

-- By the client's key (operation `create`), or by the caller's request_id (`request`). Written in the transaction that records
-- the batch, kept for a day.
create table answers (
    tenant text not null,
    operation text not null,
    answer_key text not null,
    fingerprint text not null,
    request_id text not null,
    answer text not null,
    created_at double precision not null,
    primary key (tenant, operation, answer_key)
);

create index answers_by_time on answers (created_at);
