from __future__ import annotations

import pytest

from owt_pipeline.demo.site import Site, build_site


@pytest.fixture(scope="session")
def site() -> Site:
    return build_site()
