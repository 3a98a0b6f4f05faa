"""Fitting and validation of the model of main text: labelled pages, labels of blocks, boosted
trees, scores."""
