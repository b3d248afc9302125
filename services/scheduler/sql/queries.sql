-- The scheduler's statements. A shard's life:
--
--     queued (0) ──claim_shards──▶ leased (1) ──finish_shard──▶ done (2)
--         ▲                          │  ▲ lease_until passed: claim_shards again, by anybody
--         └───────release_shard──────┘──┘
--
-- Every claim adds one to `epoch`. Whatever the holder writes later names the epoch it got, so a holder that lost its lease
-- touches no row.

-- name: insert_submission
insert into submissions (batch_id, submit_order, tenant, endpoint, lane, expire_at, input_key, index_key, row_count,
                         body_defaults, deterministic, pack, rejected_key, rejected_count, entries, recording)
 values (:batch_id, (select coalesce(max(earlier.submit_order), 0) + 1 from submissions as earlier), :tenant, :endpoint, :lane,
         :expire_at, :input_key, :index_key, :row_count, :body_defaults, :deterministic, :pack, :rejected_key, :rejected_count,
         :entries, :recording)
 on conflict (batch_id) do nothing

-- name: insert_shard
insert into shards (batch_id, shard, model, first_row, row_count) values (:batch_id, :shard, :model, :first_row, :row_count)

-- name: shards_inserted
select 'nothing to do' as done

-- name: list_submissions
select * from submissions order by submit_order

-- name: get_submission
select * from submissions where batch_id = :batch_id

-- name: list_shards
select * from shards where batch_id = :batch_id order by shard

-- name: total_segments
select count(*) as segments, coalesce(max(end_byte), 0) as end_byte,
       coalesce(sum(completed), 0) as completed, coalesce(sum(failed), 0) as failed,
       coalesce(sum(input_tokens), 0) as input_tokens, coalesce(sum(cached_tokens), 0) as cached_tokens,
       coalesce(sum(output_tokens), 0) as output_tokens, coalesce(sum(reasoning_tokens), 0) as reasoning_tokens
  from segments where batch_id = :batch_id

-- name: start_submission
update submissions set start_time = coalesce(start_time, :now) where batch_id = :batch_id

-- name: stop_submission
update submissions set stop_reason = :reason where batch_id = :batch_id and stop_reason = 0

-- name: seal_submission
update submissions set sealed = :sealed where batch_id = :batch_id

-- name: delete_submission
delete from submissions where batch_id = :batch_id returning recording

-- name: release_own
update shards set state = 0, owner = '', lease_until = 0 where state = 1 and owner = :owner

-- name: claim_shards
update shards set state = 1, epoch = shards.epoch + 1, owner = :owner, lease_until = :until
  from (select batch_id, shard from shards
         where batch_id = :batch_id and model = :model and state < 2 and lease_until < :now
         order by batch_id, shard limit :most) as free
 where shards.batch_id = free.batch_id and shards.shard = free.shard
 returning shards.shard, shards.first_row, shards.row_count, shards.epoch

-- name: claim_shard
update shards set state = 1, epoch = shards.epoch + 1, owner = :owner, lease_until = :until
 where batch_id = :batch_id and shard = :shard and state < 2 and lease_until < :now
 returning shards.shard, shards.first_row, shards.row_count, shards.epoch

-- name: renew_shard
update shards set lease_until = :until where batch_id = :batch_id and shard = :shard and epoch = :epoch and state = 1

-- name: release_shard
update shards set state = 0, owner = '', lease_until = 0
 where batch_id = :batch_id and shard = :shard and epoch = :epoch and state = 1

-- name: finish_shard
update shards set state = 2, owner = '', lease_until = 0
 where batch_id = :batch_id and shard = :shard and epoch = :epoch and state = 1

-- name: reopen_shards
update shards set state = 0, owner = '', lease_until = 0 where batch_id = :batch_id

-- name: commit_segment
insert into segments (batch_id, shard, epoch, seq, object, start_byte, end_byte, completed, failed,
                      input_tokens, cached_tokens, output_tokens, reasoning_tokens)
 select :batch_id, :shard, :epoch, :seq, :object, :start_byte, :end_byte, :completed, :failed,
        :input_tokens, :cached_tokens, :output_tokens, :reasoning_tokens
   from shards
  where shards.batch_id = :batch_id and shards.shard = :shard and shards.epoch = :epoch and shards.state = 1
 on conflict (batch_id, shard, epoch, seq) do nothing

-- name: drop_segments
delete from segments where batch_id = :batch_id

-- name: put_engine
insert into engines (engine_id, description, seen_at) values (:engine_id, :description, :now)
 on conflict (engine_id) do update set description = excluded.description, seen_at = excluded.seen_at

-- name: drain_engine
update engines set drained = :incarnation where engine_id = :engine_id

-- name: add_engine
update engines set standing = :address, drained = '', removed = null where engine_id = :engine_id

-- name: remove_engine
update engines set standing = '', removed = :incarnation where engine_id = :engine_id

-- name: keep_engine
update engines set seen_at = :now where engine_id = :engine_id

-- name: drop_engines
delete from engines where seen_at < :before and standing = ''

-- name: get_engine
select engine_id, description, seen_at, drained, standing, removed from engines where engine_id = :engine_id

-- name: list_engines
select engine_id, description, seen_at, drained, standing, removed from engines order by engine_id

-- name: insert_pin
insert into pins (batch_id, model, digest)
 select :batch_id, :model, :digest from submissions where batch_id = :batch_id
 on conflict (batch_id, model) do nothing

-- name: get_pin
select digest from pins where batch_id = :batch_id and model = :model

-- name: list_pins
select batch_id, model, digest from pins

-- Several schedulers: what was said above, and more. A submission's changes are numbered through all submissions, so that each
-- scheduler can ask what is new. A segment counts only while its shard's epoch is the writer's and the batch is not stopped:
-- whoever wakes up too late commits nothing.

-- name: release_all
update shards set state = 0, owner = '', lease_until = 0 where state = 1

-- name: release_own_turns
update submissions set seal_until = 0 where seal_owner = :owner and seal_until > 0

-- name: list_recordings
select distinct recording from submissions

-- name: next_change
update change_number set number = number + 1 returning number

-- name: mark_submission
update submissions set changed = :changed where batch_id = :batch_id

-- name: insert_forgotten
insert into forgotten (batch_id, changed) values (:batch_id, :changed)
 on conflict (batch_id) do update set changed = excluded.changed

-- name: drop_forgotten
delete from forgotten where changed < :before

-- name: list_changes
select batch_id, changed, 0 as gone from submissions where changed > :since
 union all
select batch_id, changed, 1 as gone from forgotten where changed > :since
 order by changed

-- name: list_open_shards
select shard, model, owner, lease_until from shards where batch_id = :batch_id and state < 2 order by shard

-- name: commit_fenced_segment
insert into segments (batch_id, shard, epoch, seq, object, start_byte, end_byte, position, completed, failed,
                      input_tokens, cached_tokens, output_tokens, reasoning_tokens)
 select :batch_id, :shard, :epoch, :seq, :object, :start_byte, :end_byte,
        (select coalesce(max(earlier.position), 0) + 1 from segments as earlier where earlier.batch_id = :batch_id),
        :completed, :failed, :input_tokens, :cached_tokens, :output_tokens, :reasoning_tokens
   from shards, submissions
  where shards.batch_id = :batch_id and shards.shard = :shard and shards.epoch = :epoch and shards.state = 1
    and submissions.batch_id = shards.batch_id and submissions.stop_reason = 0
 on conflict (batch_id, shard, epoch, seq) do nothing

-- name: list_segments
select object, start_byte, end_byte from segments where batch_id = :batch_id order by position

-- name: list_shard_segments
select object, start_byte, end_byte from segments where batch_id = :batch_id and shard = :shard order by position

-- name: lose_segments
delete from segments
 where batch_id = :batch_id and shard = :shard and object = :object
   and exists (select 1 from shards
                where shards.batch_id = :batch_id and shards.shard = :shard
                  and (shards.state = 2 or (shards.state = 1 and shards.epoch = :epoch)))

-- name: reopen_shard
update shards set state = 0, owner = '', lease_until = 0 where batch_id = :batch_id and shard = :shard and state = 2

-- name: take_turn
update submissions set seal_turn = seal_turn + 1, seal_owner = :owner, seal_until = :until
 where batch_id = :batch_id and seal_until < :now
 returning seal_turn

-- name: keep_turn
update submissions set seal_until = :until where batch_id = :batch_id and seal_turn = :turn

-- name: seal_in_turn
update submissions set sealed = :sealed, seal_until = 0
 where batch_id = :batch_id and seal_turn = :turn
   and (stop_reason <> 0 or not exists (select 1 from shards where shards.batch_id = :batch_id and shards.state < 2))

-- Model leases: who alone may use a model, until when. One that is active has an empty `ended`; a unique index lets a model have one.
-- `model_lease_views` says which schedulers respect it: with several, a lease is answered when all of them do.

-- name: insert_model_lease
insert into model_leases (lease_id, tenant, model, labels, ttl_seconds, create_time, expire_time, request_id, idempotency_key,
                          fingerprint)
 values (:lease_id, :tenant, :model, :labels, :ttl_seconds, :now, :until, :request_id, :idempotency_key, :fingerprint)

-- name: get_model_lease
select * from model_leases where lease_id = :lease_id and tenant = :tenant

-- name: model_lease_of_model
select * from model_leases where model = :model and ended = ''

-- name: model_lease_of_request
select * from model_leases where tenant = :tenant and request_id = :request_id and request_id <> ''

-- name: model_lease_of_key
select * from model_leases
 where tenant = :tenant and idempotency_key = :idempotency_key and idempotency_key <> '' and create_time > :since
 order by create_time desc limit 1

-- name: live_model_leases
select * from model_leases where ended = '' and expire_time > :now

-- name: first_model_leases
select * from model_leases where tenant = :tenant order by create_time desc, lease_id desc limit :size

-- name: next_model_leases
select * from model_leases
 where tenant = :tenant and (create_time, lease_id) < (:create_time, :lease_id)
 order by create_time desc, lease_id desc limit :size

-- name: renew_model_lease
update model_leases set expire_time = :until where lease_id = :lease_id and ended = ''

-- name: release_model_lease
update model_leases set ended = 'released', end_time = :now where lease_id = :lease_id and ended = ''

-- name: hand_model_lease
update model_leases set batch_id = :batch_id where lease_id = :lease_id and ended = ''

-- name: expire_model_leases
update model_leases set ended = 'expired', end_time = expire_time where ended = '' and expire_time <= :now

-- name: drop_model_leases
delete from model_leases where ended <> '' and end_time < :before

-- name: see_model_lease
insert into model_lease_views (lease_id, owner)
 select lease_id, :owner from model_leases where lease_id = :lease_id
 on conflict (lease_id, owner) do nothing

-- name: model_lease_seen
select owner from model_lease_views where lease_id = :lease_id
