"""How the model that reads main text is fitted and judged: labelled pages, labels of blocks, boosted trees, scores."""
