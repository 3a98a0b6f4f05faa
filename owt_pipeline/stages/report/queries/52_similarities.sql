-- Similarities
-- Near-duplicates by their exact similarity to the document that is kept.
-- chart: bars similarity: near_duplicates
with binned as (
    select least(floor(similarity::double * 50 + 1e-4)::int, 49) as bin, shared_bands from duplicates where rule = 'near'
)
select
    round(bin / 50, 4) as similarity,
    round((bin + 1) / 50, 4) as below,
    count(*) as near_duplicates,
    round(sum(shared_bands) / count(*), 3) as mean_shared_bands
from binned
group by bin
order by bin;
