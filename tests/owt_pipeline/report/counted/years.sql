select year, u.n as urls, coalesce(p.n, 0) as pages, coalesce(c.n, 0) as corpus
from (select year(to_timestamp(created_utc) at time zone 'UTC') as year, count(*) as n from urls group by 1) u
left join (select year(to_timestamp(created_utc) at time zone 'UTC') as year, count(*) as n from pages group by 1) p using (year)
left join (select year(to_timestamp(created_utc) at time zone 'UTC') as year, count(*) as n from corpus group by 1) c using (year)
where year is not null
order by year
