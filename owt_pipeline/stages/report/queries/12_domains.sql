-- Domains
-- The domains with the most documents in the corpus (of URLs where no document has one), their tokens, and the share of the URLs that are in the corpus.
-- chart: table
with ranked as (
    select *, sum(documents) over () as all_documents, sum(urls) over () as all_urls from domains
)
select
    domain,
    documents,
    tokens,
    case when all_urls > 0 then urls end as urls,
    share(documents, urls) as survival
from ranked
where case when all_documents > 0 then documents else urls end > 0
order by case when all_documents > 0 then documents else ranked.urls end desc, domain
limit $top_domains;
