-- Sources of links
-- Where the URLs were linked (a URL may have several sources), and the share of them that is in the corpus.
-- chart: table
with links as (
    select url_id, unnest(link_sources) as link_source from urls
)
select
    link_source as source,
    count(*) as urls,
    share(urls, (select count(*) from urls)) as share,
    count(corpus.url_id) as documents,
    share(documents, urls) as survival
from links left join corpus using (url_id)
group by link_source
order by urls desc, link_source
limit 100;
