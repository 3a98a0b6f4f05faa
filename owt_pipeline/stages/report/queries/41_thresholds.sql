-- Thresholds of the filters
-- What each threshold would reject of the documents that clean kept; a chosen filter has rejected its part already.
-- chart: table
with limited as (
    select signal, 'minimum' as kind, minimum as threshold from thresholds where minimum is not null
    union all
    select signal, 'maximum', maximum from thresholds where maximum is not null
)
select
    signal,
    kind,
    threshold,
    count(*) filter (case when kind = 'minimum' then value < threshold else value > threshold end) as documents,
    share(documents, count(*)) as share
from limited join signals using (signal)
where value is not null
group by signal, kind, threshold
order by documents desc, signal, kind desc;
