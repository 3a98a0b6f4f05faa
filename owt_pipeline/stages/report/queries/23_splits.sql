-- Splits
-- Documents and tokens for training and for validation.
-- chart: table
select split, documents, share(documents, sum(documents) over ()) as share, tokens,
    share(tokens, sum(tokens) over ()) as token_share
from splits
order by split;
