-- Near-duplicates by similarity, in 50 bins; a float32 just under a bin's edge counts as the edge.
with binned as (
    select least(floor(similarity::double * 50 + 1e-4)::int, 49) as bin, shared_bands from duplicates where rule = 'near'
)
select
    round(bin / 50, 4) as low,
    round((bin + 1) / 50, 4) as high,
    count(*) as count,
    round(sum(shared_bands) / count(*), 3) as mean_shared_bands
from binned
group by bin
order by bin;
