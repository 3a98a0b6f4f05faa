select link.source, count(*) as urls, count(corpus.url_id) as documents
from (select url_id, unnest(link_sources) as source from urls) link left join corpus using (url_id)
group by link.source
order by urls desc, link.source
