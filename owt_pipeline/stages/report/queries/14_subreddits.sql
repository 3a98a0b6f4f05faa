-- Subreddits
-- The 100 subreddits with the most documents in the corpus: their share of all documents (one that several posted counts for each), and the share of their URLs that are in the corpus.
-- chart: table
with totals as (
    select (select count(*) from corpus) as all_documents, (select count(*) from urls) as all_urls
),
ranked as (
    select
        *,
        case when all_documents > 0 then documents else urls end as rows,
        case when all_documents > 0 then all_documents else all_urls end as all_rows
    from subreddits, totals
)
select
    subreddit,
    documents,
    share(rows, all_rows) as share,
    case when all_urls > 0 then urls end as urls,
    share(documents, urls) as survival
from ranked
where rows > 0
order by rows desc, subreddit
limit 100;
