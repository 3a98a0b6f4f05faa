-- Scores
-- The share of the URLs of each score that are in the corpus.
-- chart: shares score: survival
with starts as (
    select unnest([null, 1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 100, 250, 500, 1000, 2500, 5000]) as low
),
bins as (
    select low, lead(low) over (order by low nulls first) - 1 as high from starts
),
counted as (
    select
        score,
        count(*) filter (dataset = 'urls') as urls,
        count(*) filter (dataset = 'pages') as pages,
        count(*) filter (dataset = 'corpus') as corpus
    from (
        select 'urls' as dataset, score from urls
        union all
        select 'pages', score from pages
        union all
        select 'corpus', score from corpus
    )
    where score is not null
    group by score
)
select
    case
        when low is null then '≤ ' || high
        when high is null then '≥ ' || low
        when low = high then low::varchar
        else low || '–' || high
    end as score,
    low,
    high,
    sum(urls) as urls,
    sum(pages) as pages,
    sum(corpus) as corpus,
    share(sum(corpus), sum(urls)) as survival
from counted join bins on coalesce(score >= low, true) and coalesce(score <= high, true)
group by low, high
order by low nulls first;
