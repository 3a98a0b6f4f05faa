select domain, c.n as documents, tokens, u.n as urls, c.n / u.n as survival
from (
  select split_part(url, '/', 3) as domain, count(*) as n, sum(n_tokens)::bigint as tokens
  from corpus join tokens using (url_id) group by 1
) c
join (select split_part(url, '/', 3) as domain, count(*) as n from urls group by 1) u using (domain)
order by documents desc, domain
limit 100
