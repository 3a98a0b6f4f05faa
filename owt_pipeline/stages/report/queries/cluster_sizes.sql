-- Each document that goes names its cluster's size: a cluster of n has n - 1 of them.
select cluster_size as size, count(*) // (cluster_size - 1) as clusters
from duplicates
where cluster_size > 1
group by cluster_size
order by cluster_size;
