-- Rejects to show: of each reason some at random, each id once.
with ids as (
    select dataset, reason, url_id, min(shard) as shard from rejects group by all
)
select dataset, reason, shard, url_id
from ids
qualify row_number() over (partition by dataset, reason order by spread(url_id), url_id) <= greatest($sample_urls, $sample_documents)
order by dataset, reason, spread(url_id), url_id;
