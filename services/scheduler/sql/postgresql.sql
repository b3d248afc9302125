-- Where PostgreSQL needs its own text.

-- name: claim_shards
update shards set state = 1, epoch = shards.epoch + 1, owner = :owner, lease_until = :until
  from (select batch_id, shard from shards
         where batch_id = :batch_id and model = :model and state < 2 and lease_until < :now
         order by batch_id, shard limit :most
         for update skip locked) as free
 where shards.batch_id = free.batch_id and shards.shard = free.shard
 returning shards.shard, shards.first_row, shards.row_count, shards.epoch

-- name: shards_inserted
analyze shards
