"""Near-duplicates: sketches, candidates and verified removals, as plain functions over arrays,
without Beam."""
