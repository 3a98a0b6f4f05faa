"""Token shards, the samples of a training, and files in buckets; only `loader` needs torch."""
