-- The domains that the page's search knows.
select domain, documents, case when sum(urls) over () > 0 then urls end as urls
from domains
order by documents desc, domains.urls desc, domain
limit 5000;
