select domain, u.n as urls, coalesce(p.n, 0) as pages, mean_body_bytes, most_often_otherwise
from (select host as domain, count(*) as n from urls group by 1) u
left join (select split_part(url, '/', 3) as domain, count(*) as n, avg(body_bytes) as mean_body_bytes from pages group by 1) p
using (domain)
left join (
    select domain, first(reason order by n desc, reason) as most_often_otherwise
    from (select split_part(url, '/', 3) as domain, reason, count(*) as n from pages_rejects group by all)
    group by domain
) using (domain)
order by urls desc, domain
limit 50
