select
    count(*) + 1 as documents,
    kept_url_id::varchar as kept_url_id,
    any_value(clean.url) as kept_url,
    count(*) filter (rule = 'exact') as exact_copies,
    count(*) filter (rule = 'near') as near_duplicates
from duplicates join clean on clean.url_id = kept_url_id
group by duplicates.kept_url_id
order by documents desc, duplicates.kept_url_id
limit 20
