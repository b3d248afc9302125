-- What requests with an idempotency key were answered, kept for a day. The answer is JSON of the RPC's response.
create table answers (
    tenant text not null,
    operation text not null,
    answer_key text not null,
    fingerprint text not null,
    answer text not null,
    created_at double precision not null,
    primary key (tenant, operation, answer_key)
);

create index answers_by_time on answers (created_at);
