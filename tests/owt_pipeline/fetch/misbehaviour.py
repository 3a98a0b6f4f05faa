"""Every way to misbehave by host name; importing the modules registers them."""

from __future__ import annotations

from tests.owt_pipeline.fetch import bad_messages, no_pages, odd_pages
from tests.owt_pipeline.fetch.ways import WAYS

__all__ = ["WAYS", "bad_messages", "no_pages", "odd_pages"]
