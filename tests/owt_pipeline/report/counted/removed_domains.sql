select domain, r.n as removed, c.n as documents, r.n / c.n as share
from (select split_part(url, '/', 3) as domain, count(*) as n from corpus_rejects group by 1) r
join (select split_part(url, '/', 3) as domain, count(*) as n from clean group by 1) c using (domain)
order by removed desc, domain
limit 50
