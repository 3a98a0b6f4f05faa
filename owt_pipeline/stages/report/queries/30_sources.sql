-- Sources of pages
-- Where pages come from, and the days between the submission and the capture.
-- chart: table
select
    source,
    count(*) as pages,
    count(*) filter (days_after_submission < 0) as captured_before,
    quantile_disc(abs(days_after_submission), 0.5) as median_days,
    quantile_disc(abs(days_after_submission), 0.9) as days_of_90_percent
from pages
group by source
order by source;
