-- What went with the documents that filters and export dropped.
select
    stage,
    reason,
    count(*) as documents,
    sum(characters) as characters,
    sum(bytes) as bytes,
    sum(tokens) as tokens,
    share(sum(tokens), sum(sum(tokens)) over () + (select coalesce(sum(n_tokens), 0) from tokens)) as share
from lost
group by stage, reason
order by stage, reason;
