-- The domains that lost most documents in export; what was examined of one is what stays of it and what went.
with removed as (
    select host as domain, count(*) as removed from rejects where dataset = 'corpus' and host is not null group by host
)
select
    domain,
    coalesce(domains.documents, 0) + removed as documents,
    removed,
    share(removed, coalesce(domains.documents, 0) + removed) as share
from removed left join domains using (domain)
order by removed desc, domain
limit 50;
