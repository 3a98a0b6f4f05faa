select subreddit, c.n as documents, c.n / (select count(*) from corpus) as share, u.n as urls,
  c.n / u.n as survival
from (select unnest(subreddits) as subreddit, count(*) as n from corpus group by 1) c
join (select unnest(subreddits) as subreddit, count(*) as n from urls group by 1) u using (subreddit)
order by documents desc, subreddit
limit 100
