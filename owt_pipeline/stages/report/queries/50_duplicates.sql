-- Duplicates
-- Documents that dedupe removed in favour of one with the same words, or of similar ones.
-- chart: table
select rule, count(*) as documents, share(documents, (select count(*) from clean)) as share
from duplicates
group by rule
order by rule;
