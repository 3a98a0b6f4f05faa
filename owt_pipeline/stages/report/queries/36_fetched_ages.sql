-- Link rot
-- Links by their full years from the submission to the last capture of the run: a page, gone (404, 410), no answer, or
-- another reason.
-- chart: stacked shares years: page_share gone_share no_answer_share other_share
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
    (list(reason order by n desc, reason) filter (reason is not null))[1] as most_often_otherwise,
    round(sum(milliseconds) / nullif(sum(live), 0), 1) as mean_milliseconds,
    round(sum(bytes) / nullif(pages, 0), 1) as mean_body_bytes,
    share(pages, urls) as page_share,
    share(coalesce(sum(n) filter (reason in ('http_404', 'http_410')), 0), urls) as gone_share,
    share(coalesce(sum(n) filter (reason in ('dns', 'connect', 'tls', 'timeout')), 0), urls) as no_answer_share,
    round(1 - page_share - gone_share - no_answer_share, 6) as other_share
from counted
group by years
order by years;
