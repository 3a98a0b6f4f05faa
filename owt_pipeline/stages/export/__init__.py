"""The finished corpus: the clean documents that deduplication and takedowns leave."""
