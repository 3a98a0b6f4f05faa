-- How many rows each domain has; its site is found by the Public Suffix List, which SQL does not know.
select domain, urls, documents as corpus
from domains
order by domain;
