"""Constants of `fetch` that tests change as if they were options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from owt_pipeline.stages.fetch.archives import client as archive_client
from owt_pipeline.stages.fetch.archives import wayback
from owt_pipeline.stages.fetch.web import client, live

PLACES = {
    "retries": (live, "RETRIES"),
    "max_retry_wait": (live, "MAX_RETRY_WAIT"),
    "host_failures": (live, "HOST_FAILURES"),
    "archive_retries": (archive_client, "RETRIES"),
    "archive_retry_wait": (archive_client, "MAX_RETRY_WAIT"),
    "archive_failures": (archive_client, "MAX_FAILURES"),
    "connect_timeout": (client, "CONNECT_SECONDS"),
    "silence_timeout": (client, "SILENCE_SECONDS"),
    "wayback_connections": (wayback, "CONNECTIONS"),
}


@contextmanager
def constants(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Change the constants among these values while the block runs; gives the other values,
    which are options."""
    with ExitStack() as stack:
        for name, (module, constant) in PLACES.items():
            if name in values:
                stack.enter_context(patch.object(module, constant, values[name]))
        yield {name: value for name, value in values.items() if name not in PLACES}
