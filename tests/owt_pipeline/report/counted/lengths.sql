select
    measure,
    sum(value)::bigint as sum,
    min(value) as minimum,
    max(value) as maximum,
    quantile_disc(value, 0.05) as "5 %",
    quantile_disc(value, 0.25) as "25 %",
    quantile_disc(value, 0.5) as "50 %",
    quantile_disc(value, 0.75) as "75 %",
    quantile_disc(value, 0.95) as "95 %"
from (
    select 'characters' as measure, length(text) as value from corpus
    union all
    select 'bytes', strlen(text) from corpus
    union all
    select 'words', n_words from corpus
    union all
    select 'tokens', len(tokens) from tokens
)
group by measure
order by measure
