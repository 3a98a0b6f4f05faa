-- Languages
-- Documents: the language that the page declares, or none. From clean on, the detected language.
-- chart: bars language: documents clean corpus
select
    coalesce(language, 'none') as language,
    count(*) filter (dataset = 'documents') as documents,
    count(*) filter (dataset = 'clean') as clean,
    count(*) filter (dataset = 'corpus') as corpus
from (
    select 'documents' as dataset, language from documents
    union all
    select 'clean', language from clean
    union all
    select 'corpus', language from corpus
)
group by all
order by corpus desc, clean desc, documents desc, language;
