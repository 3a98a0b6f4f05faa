-- Licences
-- Documents of the corpus by the licence that their page declares for itself.
-- chart: table
select coalesce(license, 'none declared') as licence, count(*) as documents,
    share(documents, (select count(*) from corpus)) as share
from corpus
group by all
order by documents desc, licence
limit 50;
