with largest as (
    select kept_url_id, max(cluster_size) as size
    from duplicates
    group by kept_url_id
    order by size desc, kept_url_id
    limit 20
)
select
    size,
    kept_url_id,
    list({url_id: url_id, rule: rule, similarity: round(similarity::double, 4)} order by url_id)[1:5] as removed
from largest join duplicates using (kept_url_id)
group by size, kept_url_id
order by size desc, kept_url_id;
