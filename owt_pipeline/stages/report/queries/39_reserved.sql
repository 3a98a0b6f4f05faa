-- Reserved pages
-- Documents whose pages say something against their use for AI, or for text and data mining.
-- chart: table
select reserved, count(*) as pages, share(count(*), (select count(*) from documents)) as share
from documents
where reserved is not null
group by reserved
order by pages desc, reserved;
