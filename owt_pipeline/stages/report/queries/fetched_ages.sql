-- What came of the URLs, by full years from the month of the first submission to that of the last capture.
with counted as (
    select
        greatest((select max(month_of(fetched_at)) from pages) - month_of(created_utc), 0) // 12 as years,
        reason,
        count(*) as n,
        sum(body_bytes) as bytes,
        sum(live_ms) as milliseconds,
        count(live_ms) as live
    from outcomes
    where created_utc is not null and (select count(*) from pages) > 0
    group by all
)
select
    years,
    sum(n) as urls,
    coalesce(sum(n) filter (reason is null), 0) as pages,
    coalesce(map_from_entries(list((reason, n) order by n desc, reason) filter (reason is not null)), map {}) as failures,
    round(sum(milliseconds) / nullif(sum(live), 0), 1) as mean_milliseconds,
    round(sum(bytes) / nullif(pages, 0), 1) as mean_body_bytes,
    share(pages, urls) as share
from counted
group by years
order by years;
