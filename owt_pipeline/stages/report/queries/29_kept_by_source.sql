-- Documents by source
-- Where the corpus' pages came from: the live web or an archive; imported texts have none.
-- chart: table
select
    coalesce(source, 'imported') as source,
    count(*) as documents,
    share(documents, (select count(*) from corpus)) as share,
    sum(n_tokens)::bigint as tokens,
    share(sum(n_tokens), (select sum(n_tokens) from tokens)) as token_share
from corpus left join tokens using (url_id)
group by all
order by documents desc, source;
