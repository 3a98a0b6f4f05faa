"""A folder in each kind of place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from owt_pipeline.storage.folder import Storage


@pytest.fixture
def folder(place: str, request: pytest.FixtureRequest) -> Iterator[Storage]:
    """Return an empty folder there, which no other test uses."""
    storage = Storage(f"{place}/{request.node.name.partition('[')[0]}/run") / "pages"
    yield storage
    storage.delete(*storage.names())
