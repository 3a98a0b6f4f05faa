-- Decisions to show with both texts: near-duplicates at random, then exact copies; none of what was taken down.
select rule, url_id, kept_url_id, round(similarity::double, 4) as similarity, shared_bands
from duplicates
where not exists (
    select 1
    from rejects
    where rejects.dataset = 'corpus' and rejects.reason = 'forgotten'
        and rejects.url_id in (duplicates.url_id, duplicates.kept_url_id)
)
order by rule <> 'near', spread(url_id), url_id, kept_url_id
limit 20;
