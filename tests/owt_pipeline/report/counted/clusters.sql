select coalesce(found.size, kept.size) as size, coalesce(clusters, 0) as clusters,
  coalesce(documents, 0) as documents
from (
  select n + 1 as size, count(*) as clusters
  from (select count(*) as n from duplicates group by kept_url_id)
  group by 1
) found
full join (select copies as size, count(*) as documents from corpus where copies > 1 group by 1) kept
  on found.size = kept.size
order by 1
