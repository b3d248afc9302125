-- Every status change is `move`: compare-and-set, the allowed sources as parameters (lifecycle.py), what becomes visible with the
-- new status set by the same statement. A parameter that is null leaves its column as it is.

-- name: move
update batches
   set status = :status,
       outcome = coalesce(:outcome, outcome),
       plan = coalesce(plan, :plan),
       model = coalesce(:model, model),
       submitted = coalesce(:submitted, submitted),
       errors = coalesce(:errors, errors),
       error = coalesce(:error, error),
       counts = coalesce(:counts, counts),
       usage = coalesce(:usage, usage),
       output_file_id = coalesce(:output_file_id, output_file_id),
       error_file_id = coalesce(:error_file_id, error_file_id),
       rows_left = coalesce(:rows_left, rows_left),
       in_progress_at = coalesce(in_progress_at, :in_progress_at),
       finalizing_at = coalesce(:finalizing_at, finalizing_at),
       completed_at = coalesce(:completed_at, completed_at),
       failed_at = coalesce(:failed_at, failed_at),
       expired_at = coalesce(:expired_at, expired_at),
       cancelling_at = coalesce(:cancelling_at, cancelling_at),
       cancelled_at = coalesce(:cancelled_at, cancelled_at),
       held_until = 0
 where batch_id = :batch_id and status in (:source_1, :source_2)
returning *

-- What a new timestamp must not be before, so that they stay in order whatever the clock does.

-- name: times
select created_at, in_progress_at, finalizing_at, cancelling_at from batches where batch_id = :batch_id

-- name: add_intent
insert into intents (batch_id, created_at, tenant, file_ids) values (:batch_id, :created_at, :tenant, :file_ids)

-- An intent ends with its batch, or is doomed first and dropped when all that it names is cleared; never both.

-- name: end_intent
delete from intents where batch_id = :batch_id and created_at > 0

-- name: doom_intent
update intents set created_at = 0 where batch_id = :batch_id

-- name: drop_intent
delete from intents where batch_id = :batch_id

-- name: intent
select tenant, file_ids from intents where batch_id = :batch_id

-- name: stale_intents
select batch_id from intents where created_at < :before

-- name: add_batch
insert into batches (
    batch_id, tenant, request_id, endpoint, default_model, model, input_file_id, input_blob_key, line_count, completion_window,
    expedited, deterministic, defaults, metadata, output_expires_after_seconds, status, outcome, plan, submitted, settled,
    validation_losses, lease_owner, lease_until, errors, error, counts, usage, output_file_id, error_file_id, created_at,
    expires_at, in_progress_at, finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at,
    reject, pack, own_files, adopted, rows_left, held_until
) values (
    :batch_id, :tenant, :request_id, :endpoint, :default_model, :model, :input_file_id, :input_blob_key, :line_count,
    :completion_window, :expedited, :deterministic, :defaults, :metadata, :output_expires_after_seconds, :status, :outcome, :plan,
    :submitted, :settled, :validation_losses, :lease_owner, :lease_until, :errors, :error, :counts, :usage, :output_file_id,
    :error_file_id, :created_at, :expires_at, :in_progress_at, :finalizing_at, :completed_at, :failed_at, :expired_at,
    :cancelling_at, :cancelled_at, :reject, :pack, :own_files, :adopted, :rows_left, :held_until
) on conflict do nothing

-- name: rows_validating
select coalesce(sum(line_count), 0) as line_count from batches where status = 'validating'

-- name: rows_left
select coalesce(sum(rows_left), 0) as rows_left from batches where settled = 0

-- name: active_on_file
select batch_id from batches
 where tenant = :tenant and input_file_id = :input_file_id and settled = 0
   and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
 limit 1

-- name: batch
select * from batches where batch_id = :batch_id

-- name: batch_of_tenant
select * from batches where batch_id = :batch_id and tenant = :tenant

-- name: batch_of_request
select * from batches where tenant = :tenant and request_id = :request_id

-- name: first_page
select * from batches where tenant = :tenant order by created_at desc, batch_id desc limit :size

-- name: next_page
select * from batches
 where tenant = :tenant and (created_at < :created_at or (created_at = :created_at and batch_id < :batch_id))
 order by created_at desc, batch_id desc limit :size

-- name: unsettled
select status, count(*) as batches from batches where settled = 0 group by status

-- name: set_metadata
update batches set metadata = :metadata, held_until = 0 where batch_id = :batch_id and tenant = :tenant

-- name: set_plan
update batches set plan = :plan, model = :model, counts = :counts, rows_left = :rows_left, held_until = 0
 where batch_id = :batch_id and plan is null and status in ('validating', 'cancelling')

-- name: set_submitted
update batches set submitted = 1 where batch_id = :batch_id

-- name: set_progress
update batches set counts = :counts, usage = :usage, rows_left = :rows_left
 where batch_id = :batch_id and status in ('in_progress', 'finalizing', 'cancelling')

-- Somebody may have been told of it who read the record before the status changed.

-- name: set_started
update batches
   set in_progress_at = case when :started < created_at then created_at
                             when :started > coalesce(finalizing_at, cancelling_at) then coalesce(finalizing_at, cancelling_at)
                             else :started end
 where batch_id = :batch_id and in_progress_at is null and status in ('in_progress', 'finalizing', 'cancelling')

-- name: set_adopted
update batches set adopted = 1 where batch_id = :batch_id

-- name: settle
update batches set settled = 1 where batch_id = :batch_id

-- name: lose_validation
update batches set validation_losses = validation_losses + 1 where batch_id = :batch_id returning validation_losses

-- Leases: a replica drives the batches it holds; a batch whose lease ran out is anybody's. Steps are idempotent and statuses are
-- compared and set, so a replica that was only slow does no harm.

-- name: drop_leases
update batches set lease_until = 0 where lease_owner = :owner and settled = 0

-- name: claim
update batches set lease_owner = :owner, lease_until = :until, held_until = 0
 where settled = 0 and lease_until < :now and held_until < :held_before
returning batch_id, expires_at

-- name: renew
update batches set lease_until = :until where lease_owner = :owner and settled = 0 and lease_until >= :now
returning batch_id, expires_at

-- name: cancelling
select batch_id from batches where lease_owner = :owner and settled = 0 and status = 'cancelling'

-- A batch whose client isn't answered yet (held.py). It ends with the first of: begin, move, set_plan, set_metadata, claim; or
-- it is revoked.

-- name: begin
update batches set held_until = 0 where batch_id = :batch_id

-- name: revoke
delete from batches where batch_id = :batch_id and held_until > 0

-- name: revoke_answers
delete from answers where tenant = :tenant and request_id = :request_id

-- Answers, for clients that ask again.

-- name: answer
select * from answers where tenant = :tenant and operation = :operation and answer_key = :answer_key and created_at > :since

-- name: forget_answer
delete from answers where tenant = :tenant and operation = :operation and answer_key = :answer_key

-- name: forget_answers
delete from answers where created_at <= :before

-- name: add_answer
insert into answers (tenant, operation, answer_key, fingerprint, request_id, answer, created_at)
values (:tenant, :operation, :answer_key, :fingerprint, :request_id, :answer, :created_at)
