-- Forgotten batches are asked for by their change, twice a second; each new submission asks for the last one's place.
create index forgotten_changed on forgotten (changed);
create index submissions_in_order on submissions (submit_order);
