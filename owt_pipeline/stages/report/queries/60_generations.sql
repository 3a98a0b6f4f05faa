-- Generations
-- What each run added to the runs before it: new URLs, those seen before, documents, tokens, and duplicates.
-- chart: stacked run: documents repeats_within repeats_of_earlier
select * from generations where (select count(*) from generations) > 1;
