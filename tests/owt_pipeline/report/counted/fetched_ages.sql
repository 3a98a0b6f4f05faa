with aged as (
    select
        greatest(date_diff('month', posted, (select to_timestamp(max(fetched_at)) at time zone 'UTC' from pages)), 0) // 12
            as years,
        reason
    from (select url_id, to_timestamp(created_utc) at time zone 'UTC' as posted from urls)
    left join pages_rejects using (url_id)
    where posted is not null
)
select
    years,
    count(*) as urls,
    count(*) - count(reason) as pages,
    pages / urls as page_share,
    count(*) filter (reason in ('http_404', 'http_410')) / urls as gone_share,
    count(*) filter (reason in ('dns', 'connect', 'tls', 'timeout')) / urls as no_answer_share,
    1 - page_share - gone_share - no_answer_share as other_share
from aged
group by years
order by years
