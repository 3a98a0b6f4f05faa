"""Which of several attempts at a shard makes its requests."""

from __future__ import annotations

import asyncio
import time
import uuid

from owt_pipeline.storage.folder import Storage

PATIENCE_SECONDS = 60.0
"""An attempt that writes no segment for so long is taken for dead; two segments of a run in a bucket."""


class Superseded(Exception):
    """Another attempt makes the requests for the shard now."""


class Attempt:
    """The right of one attempt to make requests for a shard: a file with its id, which the next attempt replaces.

    An attempt that finds another's id there stops. It looks when it writes a segment, so both may make requests for as
    long as a segment takes.

    Attributes:
      id: a unique name.
    """

    def __init__(self, workdir: Storage, folder: str):
        """An attempt at the shard whose segments are in `folder`."""
        self.id = uuid.uuid4().hex
        self._workdir, self._folder, self._path = workdir, folder, f"{folder}/attempt"

    def begin(self) -> bool:
        """Take the file over; returns whether another attempt had it, which may still make requests."""
        was_there = self._workdir.exists(self._path)
        self._workdir.write(self._path, self.id.encode())
        return was_there

    def check(self) -> None:
        """Raise Superseded if the file has another attempt's id."""
        if self._owner() not in (None, self.id):
            raise Superseded

    def end(self) -> None:
        """Remove the file, unless it is another attempt's."""
        if self._owner() == self.id:
            self._workdir.delete(self._path)

    async def wait_for_other(self) -> None:
        """Wait until the attempt that has superseded this one ends, or has written nothing for PATIENCE_SECONDS."""
        seen, since = ("", 0), 0.0
        while (owner := await asyncio.to_thread(self._owner)) not in (None, self.id):
            if (now := (owner, len(await asyncio.to_thread((self._workdir / self._folder).names)))) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE_SECONDS:
                return
            await asyncio.sleep(PATIENCE_SECONDS / 20)

    def _owner(self) -> str | None:
        found = self._workdir.read_version(self._path)
        return found[0].decode("utf-8", "replace") if found is not None else None
