select source, count(*) as pages, count(*) filter (days_after_submission < 0) as before
from pages
group by source
order by source;
