-- Decisions to show with both texts: near-duplicates at random, then exact copies; none of what was taken down.
select
    rule,
    round(similarity::double, 4) as similarity,
    removed.url_id as removed_id,
    removed.shard as removed_shard,
    kept.url_id as kept_id,
    kept.shard as kept_shard
from duplicates
join clean as removed on removed.url_id = duplicates.url_id
join clean as kept on kept.url_id = duplicates.kept_url_id
where not exists (
    select 1
    from rejects
    where rejects.dataset = 'corpus' and rejects.reason = 'forgotten'
        and rejects.url_id in (duplicates.url_id, duplicates.kept_url_id)
)
order by rule <> 'near', spread(removed_id), removed_id, kept_id
limit 20;
