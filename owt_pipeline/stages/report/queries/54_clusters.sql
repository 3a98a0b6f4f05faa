-- Clusters
-- Clusters of duplicates by their number of documents, and documents of the corpus by how many they represent; fewer where export applies fewer decisions.
-- chart: bars size: clusters documents
with found as (
    select cluster_size as size, count(*) // (cluster_size - 1) as clusters
    from duplicates
    where cluster_size > 1
    group by cluster_size
),
represented as (
    select copies::bigint as size, count(*) as documents from corpus where copies > 1 group by copies
)
select size::bigint as size, coalesce(clusters, 0) as clusters, coalesce(documents, 0) as documents
from found full join represented using (size)
order by size;
