"""The contract between the pipeline and the trainer: datasets, reject reasons, settings.

Manifests are in `schemas.manifest`, which the trainer does not import.
"""

from schemas.datasets import DATASETS, PLACES, REJECTS, Dataset
from schemas.reasons import Reason
from schemas.settings import SettingsError, option

__all__ = [
    "DATASETS",
    "PLACES",
    "REJECTS",
    "Dataset",
    "Reason",
    "SettingsError",
    "option",
]
