-- A page costs the same wherever it is, however many files were deleted, and however few have its purpose.
drop index files_page;
create index files_listed on files (tenant, created_at, id) where status <> 'deleted';
create index files_listed_by_purpose on files (tenant, purpose, created_at, id) where status <> 'deleted';
