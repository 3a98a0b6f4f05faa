-- The largest clusters
-- The document that is kept of each, and how many were removed in its favour.
-- chart: table
with largest as (
    select
        kept_url_id,
        max(cluster_size) as documents,
        count(*) filter (rule = 'exact') as exact_copies,
        count(*) filter (rule = 'near') as near_duplicates
    from duplicates
    group by kept_url_id
    order by documents desc, kept_url_id
    limit 20
)
select documents, exact_copies, near_duplicates, kept_url_id::varchar as kept_url_id, url as kept_url
from largest left join clean on clean.url_id = largest.kept_url_id
order by documents desc, largest.kept_url_id;
