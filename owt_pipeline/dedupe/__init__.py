"""Near-duplicates: sketches, candidates, and the proof of each removal. No Beam here: plain functions over arrays."""
