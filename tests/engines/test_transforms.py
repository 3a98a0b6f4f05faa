"""The library's transforms on Prism."""

from __future__ import annotations

import pytest

from tests.engines.engines import Engine
from tests.owt_pipeline.test_transforms import mark, unequal_lengths

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


def test_near_duplicates_are_marked_on_prism_as_the_function_finds_them(on_prism: Engine) -> None:
    mark([*on_prism.flags, "--environment_type=LOOPBACK"], unequal_lengths(seed=3, documents=80))
