-- name: add_file
insert into files (id, tenant, origin, request_id, filename, purpose, status, size_bytes, line_count, sha256, created_at,
                   expires_at, blob_key)
values (:id, :tenant, :origin, :request_id, :filename, :purpose, :status, :size_bytes, :line_count, :sha256, :created_at,
        :expires_at, :blob_key)
on conflict do nothing;

-- name: file_by_id
select files.* from files where files.id = :id and files.tenant = :tenant;

-- name: file_by_request
select files.* from files
 where files.tenant = :tenant and files.origin = :origin and files.request_id = :request_id;

-- Answers, for clients that ask again.

-- name: answer
select * from answers
 where tenant = :tenant and operation = :operation and answer_key = :key and created_at > :since;

-- name: forget_answer
delete from answers where tenant = :tenant and operation = :operation and answer_key = :key;

-- name: forget_answers
delete from answers where created_at <= :before;

-- name: add_answer
insert into answers (tenant, operation, answer_key, fingerprint, answer, created_at)
values (:tenant, :operation, :key, :fingerprint, :answer, :created_at);

-- name: page_descending
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted'
   and (files.created_at, files.id) < (:created_at, :id)
 order by files.created_at desc, files.id desc
 limit :n;

-- name: page_descending_of_purpose
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted' and files.purpose = :purpose
   and (files.created_at, files.id) < (:created_at, :id)
 order by files.created_at desc, files.id desc
 limit :n;

-- name: page_ascending
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted'
   and (files.created_at, files.id) > (:created_at, :id)
 order by files.created_at, files.id
 limit :n;

-- name: page_ascending_of_purpose
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted' and files.purpose = :purpose
   and (files.created_at, files.id) > (:created_at, :id)
 order by files.created_at, files.id
 limit :n;

-- name: delete_file
update files set status = 'deleted' where id = :id and tenant = :tenant;

-- name: expire_files
update files set status = 'expired'
 where has_bytes = 1 and expires_at <= :now and status not in ('expired', 'deleted');

-- name: hold
insert into holds (holder, file_id) values (:holder, :file_id) on conflict do nothing;

-- name: has_released
select releases.holder from releases where releases.holder = :holder;

-- name: held
select holds.file_id from holds where holds.holder = :holder and holds.file_id = :file_id;

-- name: release
delete from holds where holder = :holder;

-- name: remember_release
insert into releases (holder, released_at) values (:holder, :now) on conflict do nothing;

-- name: forget_releases
delete from releases where released_at < :before;

-- name: doomed
select files.id, files.blob_key from files
 where files.has_bytes = 1 and files.status in ('expired', 'deleted')
   and not exists (select 1 from holds where holds.file_id = files.id)
 order by files.id
 limit :n;

-- name: bytes_removed
update files set has_bytes = 0 where id = :id;

-- name: file_by_blob
select files.id from files where files.blob_key = :blob_key;

-- name: forget_requests
update files set request_id = null where request_id is not null and origin = 'upload' and created_at < :before;

-- name: add_upload
insert into uploads (id, tenant, request_id, filename, purpose, mime_type, size_bytes, expires_after, status, created_at, expires_at)
values (:id, :tenant, :request_id, :filename, :purpose, :mime_type, :size_bytes, :expires_after, 'pending', :created_at, :expires_at)
on conflict do nothing;

-- name: upload_by_id
select uploads.* from uploads where uploads.id = :id and uploads.tenant = :tenant;

-- name: upload_by_request
select uploads.* from uploads where uploads.tenant = :tenant and uploads.request_id = :request_id;

-- name: complete_upload
update uploads set status = 'completed', part_ids = :part_ids, file_id = :file_id where id = :id and status = 'pending';

-- name: cancel_upload
update uploads set status = 'cancelled' where id = :id and tenant = :tenant and status = 'pending' and expires_at > :now;

-- name: expire_uploads
update uploads set status = 'expired' where status = 'pending' and expires_at <= :before;

-- name: forget_upload_requests
update uploads set request_id = null where request_id is not null and created_at < :before;

-- name: add_part
insert into parts (id, upload_id, size_bytes, created_at) values (:id, :upload_id, :size_bytes, :created_at);

-- name: parts_of_upload
select parts.* from parts where parts.upload_id = :upload_id;

-- name: bytes_of_upload
select coalesce(sum(parts.size_bytes), 0) as size_bytes from parts where parts.upload_id = :upload_id;

-- name: part_by_id
select parts.id from parts where parts.id = :id;

-- name: doomed_parts
select parts.id from parts join uploads on uploads.id = parts.upload_id
 where uploads.status <> 'pending'
 order by parts.id
 limit :n;

-- name: part_removed
delete from parts where id = :id;
