-- Holders that have let go, so that a hold which was on its way when its holder released is refused instead of kept for ever.
create table releases (
    holder text primary key,
    released_at double precision not null  -- Unix seconds
);

create index releases_by_time on releases (released_at);
