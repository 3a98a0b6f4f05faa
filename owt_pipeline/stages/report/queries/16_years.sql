-- Years
-- Rows by the year of the first submission: collected, fetched, in the corpus.
-- chart: bars year: urls pages corpus
select
    year(moment(created_utc)) as year,
    count(*) filter (dataset = 'urls') as urls,
    count(*) filter (dataset = 'pages') as pages,
    count(*) filter (dataset = 'corpus') as corpus
from (
    select 'urls' as dataset, created_utc from urls
    union all
    select 'pages', created_utc from pages
    union all
    select 'corpus', created_utc from corpus
)
where created_utc is not null
group by all
order by year;
