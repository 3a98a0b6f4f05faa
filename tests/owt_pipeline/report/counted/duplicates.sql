select rule, count(*) as documents from duplicates group by 1 order by 1
