select rule, count(*) as documents from duplicates group by rule order by rule;
