-- Files that come in parts. A record is never removed; parts are, once their upload is pending no more.
create table uploads (
    id text primary key,
    tenant text not null,
    request_id text,                       -- what makes a repeat the same upload; null: none, or forgotten
    filename text not null,
    purpose text not null,
    mime_type text not null,
    size_bytes bigint not null,            -- of the whole, as announced
    expires_after double precision not null,  -- seconds of the file's life; 0: for ever
    status text not null,                  -- pending, completed, cancelled, expired
    created_at double precision not null,  -- Unix seconds
    expires_at double precision not null,  -- Unix seconds
    part_ids text not null default '',     -- of a completed one, in order, parted by spaces
    file_id text references files (id),    -- of a completed one
    unique (tenant, request_id)
);

create index uploads_pending on uploads (expires_at) where status = 'pending';
create index uploads_requests on uploads (created_at) where request_id is not null;

-- The bytes of a part are the blob of the same name.
create table parts (
    id text primary key,
    upload_id text not null references uploads (id),
    size_bytes bigint not null,
    created_at double precision not null   -- Unix seconds
);

create index parts_of_upload on parts (upload_id);
