-- Until when a batch waits for its client to be answered; 0 when it doesn't.
alter table batches add column held_until double precision not null default 0;
