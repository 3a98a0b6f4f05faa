-- Sources of links
-- Where the URLs were linked (a URL may have several sources), and the share of them that is in the corpus.
-- chart: table
with links as (
    select url_id, unnest(link_sources) as source from urls
)
select
    source,
    count(*) as urls,
    share(urls, (select count(*) from urls)) as share,
    count(corpus.url_id) as documents,
    share(documents, urls) as survival
from links left join corpus using (url_id)
group by source
order by urls desc, source
limit 100;
