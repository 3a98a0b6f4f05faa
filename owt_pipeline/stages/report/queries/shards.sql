-- Where the documents are that removals and the largest clusters name; those of earlier runs are nowhere.
select shard, url_id from clean where url_id in (select unnest($ids)) order by shard, url_id;
