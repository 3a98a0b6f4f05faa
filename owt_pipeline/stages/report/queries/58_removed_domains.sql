-- Removed by domain
-- The domains that lost most documents as duplicates or to takedowns.
-- chart: table
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
