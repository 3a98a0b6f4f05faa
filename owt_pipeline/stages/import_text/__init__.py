"""Your own text as documents/, in place of collect, fetch and extract."""
