-- The days of the first and the last capture of a page of the corpus, and of the first and the last submission.
select
    strftime(moment(min(fetched_at)), '%Y-%m-%d') as first_capture,
    strftime(moment(max(fetched_at)), '%Y-%m-%d') as last_capture,
    (select strftime(moment(min(created_utc)), '%Y-%m-%d') from corpus) as first_submission,
    (select strftime(moment(max(created_utc)), '%Y-%m-%d') from corpus) as last_submission
from corpus;
