-- Fetching by domain
-- What came of the URLs of the 50 domains with the most URLs; the times are of pages fetched live.
-- chart: table
with counted as (
    select
        host as domain,
        reason,
        count(*) as n,
        sum(body_bytes) as bytes,
        sum(live_ms) as milliseconds,
        count(live_ms) as live
    from outcomes
    where domain is not null
    group by all
)
select
    domain,
    sum(n) as urls,
    coalesce(sum(n) filter (reason is null), 0) as pages,
    (list(reason order by n desc, reason) filter (reason is not null))[1] as most_often_otherwise,
    round(sum(milliseconds) / nullif(sum(live), 0), 1) as mean_milliseconds,
    round(sum(bytes) / nullif(pages, 0), 1) as mean_body_bytes,
    share(pages, urls) as share
from counted
group by domain
order by urls desc, domain
limit 50;
