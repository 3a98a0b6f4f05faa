"""A page's bytes to its main text: charset, extractor, and the sandbox it runs in."""
