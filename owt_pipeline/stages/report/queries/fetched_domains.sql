-- What came of the URLs of the 50 domains of most URLs.
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
    coalesce(map_from_entries(list((reason, n) order by n desc, reason) filter (reason is not null)), map {}) as failures,
    round(sum(milliseconds) / nullif(sum(live), 0), 1) as mean_milliseconds,
    round(sum(bytes) / nullif(pages, 0), 1) as mean_body_bytes,
    share(pages, urls) as share
from counted
group by domain
order by urls desc, domain
limit 50;
