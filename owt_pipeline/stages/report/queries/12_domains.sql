-- Domains
-- The domains with the most documents in the corpus (of URLs where no document has one), and the share of the URLs
-- that are in the corpus.
-- chart: table
with ranked as (
    select
        *,
        sum(documents) over () as all_documents,
        sum(urls) over () as all_urls,
        case when all_documents > 0 then documents else urls end as rows,
        case when all_documents > 0 then all_documents else all_urls end as all_rows
    from domains
)
select
    domain,
    documents,
    share(rows, all_rows) as share,
    case when all_urls > 0 then urls end as urls,
    share(documents, urls) as survival
from ranked
where rows > 0
order by rows desc, domain
limit $top_domains;
