select n + 1 as size, count(*) as clusters
from (select count(*) as n from duplicates group by kept_url_id)
group by 1
order by 1
