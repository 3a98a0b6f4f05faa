-- Lengths
-- Documents of the corpus by length, with exact percentiles: the least value that so many percent do not exceed.
-- chart: table
select
    measure,
    sum(value)::bigint as sum,
    round(sum(value)::bigint / count(*), 1) as mean,
    min(value) as minimum,
    quantile_disc(value, 0.05) as "5 %",
    quantile_disc(value, 0.25) as "25 %",
    quantile_disc(value, 0.5) as "50 %",
    quantile_disc(value, 0.75) as "75 %",
    quantile_disc(value, 0.95) as "95 %",
    max(value) as maximum
from lengths
group by measure
order by measure;
