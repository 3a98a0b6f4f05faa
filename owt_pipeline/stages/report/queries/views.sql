-- What several queries count; run once the tables are filled.

create table domains as
select
    host as domain,
    count(*) filter (dataset = 'corpus') as documents,
    count(*) filter (dataset = 'urls') as urls,
    coalesce(sum(n_tokens), 0)::bigint as tokens
from (
    select 'urls' as dataset, host, null as n_tokens from urls
    union all
    select 'corpus', host, n_tokens from corpus left join tokens using (url_id)
)
where host is not null
group by host;

create table subreddits as
select
    subreddit,
    count(*) filter (dataset = 'corpus') as documents,
    count(*) filter (dataset = 'urls') as urls
from (
    select 'urls' as dataset, unnest(subreddits) as subreddit from urls
    union all
    select 'corpus', unnest(subreddits) from corpus
)
group by subreddit;

-- What came of each URL that was asked for: a page, or a reason.
create view outcomes as
select host, created_utc, status, null as reason, body_bytes, case when source = 'live' then fetch_ms end as live_ms
from pages
union all
select rejects.host, urls.created_utc, null, rejects.reason, null, null
from rejects left join urls using (url_id)
where rejects.dataset = 'pages';

-- The lengths of the corpus' documents in each unit.
create view lengths (measure, value) as
select 'characters', n_chars from corpus
union all
select 'bytes', n_bytes from corpus
union all
select 'words', n_words from corpus
union all
select 'tokens', n_tokens from tokens;
