-- Answers
-- What came of each URL that was asked for: a status with a page, or the reason why there is none.
-- chart: table
select coalesce(reason, 'status ' || status) as answer, count(*) as urls, share(urls, (select count(*) from outcomes)) as share
from outcomes
group by all
order by urls desc, answer;
