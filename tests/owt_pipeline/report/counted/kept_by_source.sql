select source, count(*) as documents, sum(n_tokens)::bigint as tokens,
  sum(n_tokens) / (select sum(n_tokens) from tokens) as token_share
from corpus join tokens using (url_id) group by 1 order by documents desc, source
