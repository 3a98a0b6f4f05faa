-- Exact percentiles (the least value that so many percent do not exceed) and histograms with four bins per octave. A
-- name without values has a row too.
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
names (name) as (
    select unnest(['characters', 'bytes', 'words', 'tokens', 'milliseconds', 'body_bytes'])
    union
    select 'days/' || source from pages
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
    select name, q, min(value) filter (up_to * 100 >= q * total) as value
    from names left join running using (name), unnest([1, 5, 10, 25, 50, 75, 90, 95, 99]) as percents (q)
    group by name, q
),
bins as (
    select name, bin_low(value, 4) as low, sum(n)::bigint as n from counted group by all
)
select
    name,
    coalesce(sum(n), 0) as count,
    coalesce(sum(value * n), 0) as sum,
    round(sum(value * n) / sum(n), 2) as mean,
    min(value) as minimum,
    max(value) as maximum,
    (select map_from_entries(list((q::varchar, value) order by q)) from percentiles where percentiles.name = names.name)
        as percentiles,
    coalesce((select list([low, bin_high(low, 4), n] order by low) from bins where bins.name = names.name), [])
        as histogram
from names left join counted using (name)
group by name
order by name;
