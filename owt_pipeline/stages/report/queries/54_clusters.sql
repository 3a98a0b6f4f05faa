-- Clusters
-- Clusters of duplicates by their number of documents.
-- chart: bars size: clusters
select cluster_size as size, count(*) // (cluster_size - 1) as clusters
from duplicates
where cluster_size > 1
group by cluster_size
order by cluster_size;
