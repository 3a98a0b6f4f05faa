"""The stages of a run, a folder each; `owt_pipeline/pipeline.py` has their order."""
