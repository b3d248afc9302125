-- Error lines of input lines that validation rejected: they are counted as failed, and sealing merges them.
alter table submissions add column rejected_key text not null default '';
alter table submissions add column rejected_count bigint not null default 0;
