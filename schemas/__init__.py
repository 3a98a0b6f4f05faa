"""The contract between the pipeline and the trainer: datasets, reject reasons, manifests, settings."""

from schemas.datasets import DATASETS, REJECTS, Dataset, arrow_schema
from schemas.manifest import Counts, Manifest, ManifestError, ShardFile, ShardSum
from schemas.reasons import Reason
from schemas.settings import SettingsError, option

__all__ = [
    "DATASETS",
    "REJECTS",
    "Counts",
    "Dataset",
    "Manifest",
    "ManifestError",
    "Reason",
    "SettingsError",
    "ShardFile",
    "ShardSum",
    "arrow_schema",
    "option",
]
