-- How many token ids occur how often.
with counted as (select id, sum(n)::bigint as n from vocabulary group by id)
select bin_low(n, 1) as low, bin_high(low, 1) as high, count(*) as ids
from counted
group by all
order by low;
