select status, count(*) as pages from pages group by status order by status;
