-- Times and sizes of pages
-- Milliseconds from the request to the last byte of pages fetched live, and bytes of all pages, decoded.
-- chart: bars value: pages by measure
with recursive measured (measure, amount) as (
    select 'milliseconds', fetch_ms from pages where source = 'live' and fetch_ms is not null
    union all
    select 'bytes', body_bytes from pages where body_bytes is not null
),
counted as (
    select measure, bin_low(amount, 2) as low, count(*) as pages from measured group by all
),
ranges as (
    select measure, min(low) as low, max(low) as highest from counted group by measure
    union all
    select measure, bin_high(low, 2), highest from ranges where low < highest
)
select
    measure,
    low,
    bin_high(low, 2) as below,
    case when below = low + 1 then low::varchar else low || '–' || (below - 1) end as value,
    coalesce(pages, 0) as pages
from ranges left join counted using (measure, low)
order by measure, low;
