select strftime(moment(max(fetched_at)), '%Y-%m') as month from pages;
