-- The rows of each site on a list. `site_of` is Python's, because SQL does not know the Public Suffix List.
with listed as (
    select unnest($sites) as site, unnest($counts) as reference
),
counted as (
    select site_of(domain) as site, sum(urls) as urls, sum(documents) as corpus from domains group by all
)
select
    site,
    reference,
    coalesce(urls, 0) as urls,
    coalesce(corpus, 0) as corpus,
    (select coalesce(sum(urls), 0) from domains) as all_urls,
    (select coalesce(sum(documents), 0) from domains) as all_corpus
from listed left join counted using (site)
order by reference desc, site;
