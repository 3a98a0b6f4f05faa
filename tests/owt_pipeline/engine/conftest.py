"""Fixtures of the storage's tests: a folder on a disk and in each kind of bucket."""

from __future__ import annotations

from tests.owt_pipeline.storage.conftest import folder, place

__all__ = ["folder", "place"]
