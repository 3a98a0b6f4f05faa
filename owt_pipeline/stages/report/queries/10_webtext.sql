-- Similarity to WebText
-- This corpus next to OpenWebText as Gokaslan and Cohen published it, tokenized with GPT-2's BPE.
-- chart: table
with measured as (
    select
        (select round(avg(n_tokens), 1) from tokens) as tokens_per_document,
        round((select sum(n_bytes) from corpus) / (select sum(n_tokens) from tokens), 3) as bytes_per_token
)
select 'tokens per document' as measure, tokens_per_document as this_corpus, 1128::double as openwebtext,
    share(tokens_per_document, 1128) as share
from measured
union all
select 'bytes per token', bytes_per_token, 4.40::double, share(bytes_per_token, 4.40) from measured
order by measure desc;
