select 'status ' || status as answer, count(*) as urls from pages group by 1
union all
select reason, count(*) from pages_rejects group by 1
order by urls desc, answer
