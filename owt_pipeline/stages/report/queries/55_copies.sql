-- Copies
-- Documents of the corpus that represent several, by how many: themselves, and those left out as their duplicates.
-- chart: bars copies: documents
select copies, count(*) as documents
from corpus
where copies > 1
group by copies
order by copies;
