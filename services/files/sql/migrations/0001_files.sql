-- The record of stored bytes. A record is never removed: it says what became of the bytes.
create table files (
    id text primary key,
    tenant text not null,
    origin text not null,                  -- upload, adopt
    request_id text,                       -- what makes a repeat the same file; null: none, or forgotten
    filename text not null,
    purpose text not null,
    status text not null,                  -- uploaded, processed, error, expired, deleted
    status_details text not null default '',
    size_bytes bigint not null,
    line_count bigint not null,
    sha256 text not null,
    created_at double precision not null,  -- Unix seconds
    expires_at double precision,           -- Unix seconds; null: never
    blob_key text not null unique,
    has_bytes integer not null default 1,  -- 0 once the blob was removed
    unique (tenant, origin, request_id)
);

create index files_page on files (tenant, created_at, id);
create index files_expiring on files (expires_at) where has_bytes = 1;
create index files_doomed on files (id) where has_bytes = 1 and status in ('expired', 'deleted');
create index files_requests on files (created_at) where request_id is not null;

-- Who needs a file's bytes, whatever becomes of the file.
create table holds (
    holder text not null,
    file_id text not null references files (id),
    primary key (holder, file_id)
);

create index holds_of_file on holds (file_id);
