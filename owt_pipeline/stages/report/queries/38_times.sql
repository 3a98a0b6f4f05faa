-- Times and sizes of pages
-- Milliseconds from the request to the last byte of pages fetched live, and bytes of all pages, decoded.
-- chart: bars value: pages by measure
with measured (measure, amount) as (
    select 'milliseconds', fetch_ms from pages where source = 'live'
    union all
    select 'bytes', body_bytes from pages
)
select
    measure,
    bin_low(amount, 2) as low,
    bin_high(low, 2) as below,
    case when below = low + 1 then low::varchar else low || '–' || (below - 1) end as value,
    count(*) as pages
from measured
where amount is not null
group by all
order by measure, low;
