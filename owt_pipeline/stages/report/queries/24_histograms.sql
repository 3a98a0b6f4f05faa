-- Documents by length
-- Four columns for each doubling of the length.
-- chart: bars length: documents by measure
with recursive ranges as (
    select measure, min(bin_low(value, 4)) as low, max(bin_low(value, 4)) as highest
    from lengths
    where measure <> 'bytes'
    group by measure
    union all
    select measure, bin_high(low, 4), highest from ranges where low < highest
),
counted as (
    select measure, bin_low(value, 4) as low, count(*) as documents from lengths group by all
)
select
    measure,
    low,
    bin_high(low, 4) as below,
    case when below = low + 1 then low::varchar else low || '–' || (below - 1) end as length,
    coalesce(documents, 0) as documents
from ranges left join counted using (measure, low)
order by measure, low;
