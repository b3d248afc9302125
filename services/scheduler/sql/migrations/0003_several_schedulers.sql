-- Several schedulers on one database: who records a batch, what changed last, and whose turn it is to seal.
alter table submissions add column recording text not null default 'journal';   -- 'journal', or 'segments'
alter table submissions add column changed bigint not null default 0;           -- number of the last change
alter table submissions add column seal_turn bigint not null default 0;         -- the fencing number: each turn adds one
alter table submissions add column seal_owner text not null default '';
alter table submissions add column seal_until double precision not null default 0;
create index submissions_changed on submissions (changed);

alter table segments add column position bigint not null default 0;             -- 1, 2, 3, … of a batch, in the order of commits
create index segments_in_order on segments (batch_id, position);

create table change_number (number bigint not null);
insert into change_number values (0);

create table forgotten (
  batch_id text primary key,
  changed bigint not null
);
