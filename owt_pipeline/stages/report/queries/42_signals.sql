-- Signals of the filters
-- Documents that clean kept, by what the filters measure of them, and those that a filter's threshold would reject.
-- chart: stacked range: within beyond by signal
with recursive scales as (
    select signal, max(value) <= 1 as is_share from signals group by signal
),
measured as (
    select
        signal,
        is_share,
        value,
        -- The number of the range: twentieths of a share, else two ranges for each doubling.
        case when is_share then floor(value * 20 + 1e-9)::bigint else bin_low(floor(value)::bigint, 2) end as place,
        coalesce(value > maximum or value < minimum, false) as is_beyond
    from signals join scales using (signal) left join thresholds using (signal)
    where value >= 0
),
counted as (
    select signal, is_share, place, count(*) as documents, count(*) filter (is_beyond) as beyond
    from measured
    group by all
),
ranges as (
    select signal, is_share, min(place) as place, max(place) as highest from counted group by all
    union all
    select signal, is_share, case when is_share then place + 1 else bin_high(place, 2) end, highest
    from ranges
    where place < highest
)
select
    signal,
    case when is_share then round(place / 20, 2) else place::double end as low,
    case when is_share then round((place + 1) / 20, 2) else bin_high(place, 2)::double end as below,
    case
        when is_share and place = 20 then '1'
        when is_share then format('{:.2f} to {:.2f}', low, below)
        when below = low + 1 then place::varchar
        else place || '–' || (bin_high(place, 2) - 1)
    end as range,
    coalesce(documents, 0) as documents,
    coalesce(documents, 0) - coalesce(beyond, 0) as within,
    coalesce(beyond, 0) as beyond
from ranges left join counted using (signal, is_share, place)
order by signal, low;
