select language, coalesce(d.n, 0) as documents, coalesce(k.n, 0) as clean, coalesce(c.n, 0) as corpus
from (select coalesce(language, 'none') as language, count(*) as n from documents group by 1) d
full join (select coalesce(language, 'none') as language, count(*) as n from clean group by 1) k using (language)
full join (select coalesce(language, 'none') as language, count(*) as n from corpus group by 1) c using (language)
order by corpus desc, clean desc, documents desc, language
