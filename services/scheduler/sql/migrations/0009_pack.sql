-- Texts to embed may share a call.
alter table submissions add column pack integer not null default 0;
