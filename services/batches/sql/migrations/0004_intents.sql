-- The files of an unmade batch, which go with what else its intent names: ids with spaces between them, and whose they are.
alter table intents add column tenant text not null default '';
alter table intents add column file_ids text not null default '';
