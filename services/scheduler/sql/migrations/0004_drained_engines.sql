-- Which incarnation of an engine is drained, so that every scheduler sends it nothing more.
alter table engines add column drained text not null default '';
