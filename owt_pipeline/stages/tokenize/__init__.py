"""The corpus as token ids, in shards for training."""
