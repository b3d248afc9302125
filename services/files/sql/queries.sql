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

-- name: page_descending
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted' and (:purpose = '' or files.purpose = :purpose)
   and (files.created_at, files.id) < (:created_at, :id)
 order by files.created_at desc, files.id desc
 limit :n;

-- name: page_ascending
select files.* from files
 where files.tenant = :tenant and files.status <> 'deleted' and (:purpose = '' or files.purpose = :purpose)
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

-- name: held
select holds.file_id from holds where holds.holder = :holder and holds.file_id = :file_id;

-- name: release
delete from holds where holder = :holder;

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
