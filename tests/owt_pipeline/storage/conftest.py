"""Places where a working directory may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from owt_pipeline.storage.folder import Storage
from tests.servers.azure import az_bucket
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

BUCKETS = {"s3": s3_bucket, "gs": gcs_bucket, "az": az_bucket}


@pytest.fixture(scope="module", params=["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in BUCKETS)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A local folder or a bucket."""
    if request.param == "disk":
        yield str(tmp_path_factory.mktemp("disk"))
    else:
        with BUCKETS[request.param]() as uri:
            yield uri


@pytest.fixture
def folder(place: str, request: pytest.FixtureRequest) -> Iterator[Storage]:
    """An empty folder there, of this test alone."""
    storage = Storage(f"{place}/{request.node.name.partition('[')[0]}/run") / "pages"
    yield storage
    storage.delete(*storage.names())
