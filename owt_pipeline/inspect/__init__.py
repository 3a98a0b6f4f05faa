"""Looking into datasets: their schema, their rows, documents at random."""
