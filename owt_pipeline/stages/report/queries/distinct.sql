-- How many domains and subreddits there are.
select
    'domain' as kind,
    count(*) filter (documents > 0) as corpus,
    count(*) filter (urls > 0) as urls
from domains
union all
select 'subreddit', count(*) filter (documents > 0), count(*) filter (urls > 0)
from subreddits
order by kind;
