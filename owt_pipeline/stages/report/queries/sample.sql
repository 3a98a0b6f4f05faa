-- Documents of the corpus to show.
select shard, url_id from corpus order by spread(url_id), url_id limit $sample_documents;
