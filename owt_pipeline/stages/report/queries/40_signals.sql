-- Signals of the filters
-- Documents that clean kept, by what the filters measure of them; choose thresholds from it.
-- chart: bars range: documents by signal
with ranges as (
    select signal, max(value) <= 1 as is_share from signals group by signal
),
binned as (
    select
        signal,
        case when is_share then floor(value * 20 + 1e-9) / 20 else bin_low(floor(value)::bigint, 2) end as low,
        case when is_share then round(low + 0.05, 2) else bin_high(low::bigint, 2) end as below
    from signals join ranges using (signal)
    where value >= 0
)
select
    signal,
    low,
    below,
    case
        when below = low + 1 then low::bigint::varchar
        when below > 1 then low::bigint || '–' || (below::bigint - 1)
        else low || ' to ' || below
    end as range,
    count(*) as documents
from binned
group by all
order by signal, low;
