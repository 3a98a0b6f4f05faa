-- Documents by length
-- Four columns for each doubling of the length.
-- chart: bars length: documents by measure
select
    measure,
    bin_low(value, 4) as low,
    bin_high(low, 4) as below,
    case when below = low + 1 then low::varchar else low || '–' || (below - 1) end as length,
    count(*) as documents
from lengths
where measure <> 'bytes'
group by all
order by measure, low;
