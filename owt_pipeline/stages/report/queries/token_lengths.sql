-- How many documents have each length, for the samplers' mixture.
select n_tokens as length, count(*) as documents from tokens group by n_tokens order by n_tokens;
