select coalesce(license, 'none declared') as licence, count(*) as documents
from corpus group by 1 order by documents desc, licence
