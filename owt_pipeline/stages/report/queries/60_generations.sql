-- Generations
-- What each generation added to those before it: new URLs, those seen before, documents, tokens, and duplicates.
-- chart: stacked generation: documents repeats_within repeats_of_earlier
select
  generation,
  (select count(*) from urls where shard between first and last) as urls,
  (select count(*) from rejects
   where dataset = 'urls' and reason = 'seen_before' and shard between first and last) as seen_before,
  (select count(*) from corpus where shard between first and last) as documents,
  (select sum(n_tokens)::bigint from tokens where shard between first and last) as tokens,
  (select count(*) from duplicates as d left join clean as k on k.url_id = d.kept_url_id
   where d.shard between first and last and coalesce(k.shard >= first, true)) as repeats_within,
  (select count(*) from duplicates as d join clean as k on k.url_id = d.kept_url_id
   where d.shard between first and last and k.shard < first) as repeats_of_earlier
from generations
where (select count(*) from generations) > 1
order by first;
