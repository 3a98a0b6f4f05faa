-- Exact percentiles (the least value that so many percent do not exceed) and histograms of four bins an octave.
with measured (name, value) as (
    select 'characters', characters from lengths
    union all
    select 'bytes', bytes from lengths
    union all
    select 'words', n_words from corpus
    union all
    select 'tokens', n_tokens from tokens
    union all
    select 'milliseconds', fetch_ms from pages where source = 'live'
    union all
    select 'body_bytes', body_bytes from pages
    union all
    select 'days/' || source, abs(days_after_submission) from pages
),
counted as (
    select name, value::bigint as value, count(*) as n from measured where value is not null group by all
),
running as (
    select
        *,
        sum(n) over (partition by name order by value) as up_to,
        sum(n) over (partition by name) as total
    from counted
),
percentiles as (
    select name, q, min(value) as value
    from running, unnest([1, 5, 10, 25, 50, 75, 90, 95, 99]) as percents (q)
    where up_to * 100 >= q * total
    group by name, q
),
bins as (
    select name, bin_low(value, 4) as low, sum(n)::bigint as n from counted group by all
)
select
    name,
    sum(n) as count,
    sum(value * n) as sum,
    round(sum(value * n) / sum(n), 2) as mean,
    min(value) as minimum,
    max(value) as maximum,
    (select map_from_entries(list((q::varchar, value) order by q)) from percentiles where percentiles.name = counted.name)
        as percentiles,
    (select list([low, bin_high(low, 4), n] order by low) from bins where bins.name = counted.name) as histogram
from counted
group by name
order by name;
