-- The index of a batch of few rows, base64: a file of its own costs more than its rows.
alter table submissions add column entries text not null default '';
