"""The lease on a working directory: one run at a time, on a disk or in a bucket.

`.lease` names who holds it. It is created only if absent and renewed every five seconds by compare-and-swap: of many
processes that see a lease which nobody has renewed for so long, one renews it. A lease that nobody has renewed for 30
seconds is dead, by the clock of the process that watches it: clocks of two machines are never compared. So a second run
waits until the first one renews its lease, and then refuses, or takes the lease over. On the same machine there is
nothing to wait for: whether the owner still runs can be seen.

`owt run` holds the lease from the process that was started (`hold`). A graph that was built by `build` takes it as its
first step, keeps it while a step is at work, and lets go of it at its end (`take`, `keeping`, `release`).

A run that finds that its lease was taken over stops. It asks before each manifest that it writes (`renew`), so a run
that was stopped for a while and wakes up later publishes nothing. What it may have written by then harms nobody: data
files are named by their content, and records are created only if absent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from owt_pipeline.errors import JobRuns, UserError
from owt_pipeline.storage.disk import Process, this_process
from owt_pipeline.storage.folder import Storage, in_thread

logger = logging.getLogger("owt")

LEASE_NAME = ".lease"
TERM_SECONDS = 30.0
"""Without a renewal for so long, a lease is dead."""
RENEW_SECONDS = 5.0
_STOP_SECONDS = 20.0
"""How long a run that has lost its lease may take to end by itself."""
_RELEASE_SECONDS = 10.0


class Job(msgspec.Struct, frozen=True):
    """A job on a cluster, by Beam's name of the runner and the runner's of the job; it continues when the process that
    started it ends."""

    runner: str
    id: str


class Holder(msgspec.Struct, frozen=True):
    """What a file says that one run or attempt holds: it is created only if absent, and changed by compare-and-swap.

    Attributes:
      owner: a random id.
      renewals: how often it was renewed; with this, no two contents are the same.
    """

    owner: str
    renewals: int


class Lease(Holder, frozen=True):
    """What `.lease` says; `owner` is a run.

    Attributes:
      host, pid, started: its process (see `Process`).
      command: what was run, such as `owt run`.
      expires: when it ends unless it is renewed, by the clock of its host (seconds since 1970), which only processes
        of that host compare.
      job: the job that does the work, if it is not the process itself.
    """

    host: str
    pid: int
    started: str
    command: str
    expires: float
    job: Job | None = None

    @property
    def process(self) -> Process:
        return Process(self.host, self.pid, self.started)

    def __str__(self) -> str:
        holder = f"`{self.command}` (process {self.pid} on {self.host.partition('.')[0]})"
        if self.job:
            holder = f"job {self.job.id} on {self.job.runner}, started by {holder}"
        return f"{holder}, until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.expires))} unless renewed"


H = TypeVar("H", bound=Holder)


class LeaseLost(UserError):
    """Another run has taken the working directory over."""


class Held(NamedTuple):
    """A lease that this process holds: its owner, a random id; and the job that `ended`, of a run that nobody waited
    for, if its lease was taken over."""

    owner: str
    ended: Job | None


@contextlib.contextmanager
def hold(
    workdir: Storage, take_over: bool = False, job_runs: Callable[[Job], bool | None] | None = None
) -> Iterator[Held]:
    """Hold the lease on a working directory until the block ends.

    Args:
      workdir: the working directory; made where it is missing.
      take_over: take the lease whoever holds it.
      job_runs: asks a runner whether a job still runs; None where it cannot be known. Without it, or with that answer,
        a lease that names a job is not taken over.

    Raises UserError naming the holder where another run holds it. Raises LeaseLost at the block's end, or by
    interrupting the main thread within it, where another run has taken it over.
    """
    owner, lost = uuid.uuid4().hex, list[LeaseLost]()
    before = take(workdir, owner, take_over, job_runs)
    try:
        try:
            with keeping(workdir, owner, lost.append):
                yield Held(owner, before.job if before else None)
        finally:
            with contextlib.suppress(TimeoutError, concurrent.futures.TimeoutError):  # without the network: no harm
                in_thread(partial(release, workdir, owner)).result(_RELEASE_SECONDS)
    except KeyboardInterrupt:
        if not lost:
            raise
    if lost:
        raise lost[0] from None


def renew(workdir: Storage, owner: str, every: float = 0.0) -> None:
    """Renew the lease of the run `owner`, in its own process or in another one that works for it.

    Workers on a cluster call it with each record that they write. With `every` (seconds), a process looks at the lease
    no more often, and renews it only where it has seen the same one for so long, by its own clock. It tries once: of
    many processes that see one lease, one renews it. Buckets take about one write a second of an object.

    Raises LeaseLost where the lease is another's.
    """
    key, now = (workdir.uri, owner), time.monotonic()
    before = _looks.get(key)
    if every and before and now < before.at + every:
        return
    lease, version = _read(workdir)
    since = before.since if before and before.version == version else now
    if lease is not None and version is not None and lease.owner == owner and now >= since + every:
        expires = time.time() + TERM_SECONDS if lease.process.is_here else lease.expires
        changed = msgspec.structs.replace(lease, renewals=lease.renewals + 1, expires=expires)
        swapped = workdir.swap(LEASE_NAME, msgspec.json.encode(changed), version)
        if swapped is None:  # another process of the run was first, or another run
            lease, swapped = _read(workdir)
        version, since = swapped, now
    if lease is None or lease.owner != owner:
        raise _lost(workdir)
    _looks[key] = _Look(now, version, since)


class _Look(NamedTuple):
    """When this process last looked at a lease, the version that it saw, and since when it has seen this one."""

    at: float
    version: str | None
    since: float


def is_held(workdir: Storage, owner: str) -> bool:
    """Whether the run `owner` holds the lease, which is renewed; True without an owner."""
    try:
        if owner:
            renew(workdir, owner)
    except LeaseLost:
        return False
    return True


@contextlib.contextmanager
def keeping(workdir: Storage, owner: str, lose: Callable[[LeaseLost], object] | None = None) -> Iterator[None]:
    """Renew the lease while the block runs, whatever it waits for.

    Where it is lost, `lose` is called and the main thread interrupted; without it, the block finds out by itself.
    """
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SECONDS):
            try:
                renew(workdir, owner, every=RENEW_SECONDS)
            except LeaseLost as error:
                if lose is not None:
                    lose(error)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    if not ended.wait(_STOP_SECONDS):
                        print(f"owt: error: {error}", file=sys.stderr, flush=True)
                        os._exit(1)
                return
            except (OSError, UserError) as error:  # nobody else can take it over without the storage, either
                logger.warning("the lease on %s could not be renewed, trying again: %s", workdir, error)

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    except BaseException:
        _held.discard(owner)  # unless a runner tries it again, the run has ended
        raise
    finally:
        ended.set()
        keeper.join(_RELEASE_SECONDS)


def release(workdir: Storage, owner: str) -> None:
    """Delete the lease of the run `owner`, unless its job continues or another run has taken it over."""
    _held.discard(owner)
    with contextlib.suppress(LeaseLost, OSError, UserError):
        renew(workdir, owner)  # so that nobody finds it dead between this line and the last
        lease = _read(workdir)[0]
        if lease and lease.owner == owner and not lease.job:
            workdir.remove_dead_spools()
            workdir.delete(LEASE_NAME)


def name_job(workdir: Storage, owner: str, job: Job | None) -> None:
    """Write into the lease which job works for the run `owner`; None when the job has ended. Raises LeaseLost."""
    if not rewrite(workdir, LEASE_NAME, Lease, owner, job=job):
        raise _lost(workdir)


_looks: dict[tuple[str, str], _Look] = {}  # of this process, by working directory and owner
_held: set[str] = set()  # owners of the runs that began in this process and have not ended


def is_in_sight(workdir: Storage) -> bool:
    """Whether this process sees a run's lease: it does not where its folder of this name is on another disk."""
    return _read(workdir)[1] is not None


def out_of_sight(workdir: Storage) -> UserError:
    """The error of a run whose workers see another folder."""
    return UserError(
        f"--workdir {workdir}: the workers do not see what is written there; give a bucket (gs://, s3://, az://), or a "
        "folder with the same path on a disk that all machines share"
    )


def running(workdir: Storage) -> Lease | None:
    """The lease under which a run is at work here, as far as one look can tell; None where there is none."""
    lease = _read(workdir)[0]
    if lease is None or (lease.process.is_here and not lease.job and not lease.process.runs()):
        return None
    return lease if lease.job or not lease.process.is_here or lease.expires > time.time() else None


def mention_running(workdir: Storage) -> None:
    """Say in one line on stderr that a run is at work, for commands that read a working directory."""
    if lease := running(workdir):
        logger.warning("%s is in use by %s: what it has not finished is not there yet", workdir, lease)


def take(
    workdir: Storage, owner: str, take_over: bool = False, job_runs: Callable[[Job], bool | None] | None = None
) -> Lease | None:
    """Take the lease for the run `owner`, in this process; once more has no effect. The arguments are those of `hold`,
    and so are the errors. Returns the lease that was taken over, if any."""
    process = this_process()
    _held.add(owner)

    def mine() -> bytes:
        expires = time.time() + TERM_SECONDS
        return msgspec.json.encode(Lease(owner, 0, process.host, process.pid, process.started, _command(), expires))

    while not workdir.create(LEASE_NAME, mine()):
        lease, version = _read(workdir)
        if version is None:
            continue  # released just now
        if lease and lease.owner == owner:
            break  # it was created or swapped, but the answer was lost
        if not take_over and not _is_dead(workdir, lease, version, job_runs):
            continue
        if workdir.swap(LEASE_NAME, mine(), version) is not None:
            logger.info("%s: took the lease over from %s", workdir, lease or "nobody known")
            return lease
    return None


def _is_dead(
    workdir: Storage, lease: Lease | None, version: str, job_runs: Callable[[Job], bool | None] | None
) -> bool:
    """Whether a lease may be taken over; False when it is gone. Raises UserError where it is alive."""
    if lease and lease.job:
        runs = job_runs(lease.job) if job_runs else None
        if runs is None:
            raise UserError(
                f"{workdir} is in use by {lease}; whether the job still runs cannot be seen from here: if it has "
                "ended, run the same command with --take_over"
            )
        if runs:
            raise _in_use(workdir, lease)
        return True
    if lease and lease.process.is_here:
        if not lease.process.runs() or (lease.process == this_process() and lease.owner not in _held):
            return True
        if lease.expires > time.time():
            raise _in_use(workdir, lease)
    logger.warning("%s is in use by %s: waiting up to %.0f s for a sign of life", workdir, lease, TERM_SECONDS)
    end = time.monotonic() + TERM_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, TERM_SECONDS / 10))
        seen, seen_version = _read(workdir)
        if seen_version is None:
            return False
        if seen_version != version:
            raise _in_use(workdir, seen)
    return True


def _in_use(workdir: Storage, lease: Lease | None) -> UserError:
    kind = JobRuns if lease and lease.job else UserError
    return kind(f"{workdir} is in use by {lease}: wait for it to end, or stop it")


def _lost(workdir: Storage) -> LeaseLost:
    return LeaseLost(f"{workdir} was taken over by {_read(workdir)[0] or 'nobody known'}; this run stops")


def _read(workdir: Storage) -> tuple[Lease | None, str | None]:
    return read_holder(workdir, LEASE_NAME, Lease)


def rewrite(folder: Storage, name: str, kind: type[Holder], owner: str, **changes: Any) -> bool:
    """Renew, and change, the file that `owner` holds; returns False where it is another's, or gone."""

    def renewed(content: bytes | None) -> bytes | None:
        holder = _holder(content or b"", kind)
        if holder is None or holder.owner != owner:
            return None
        return msgspec.json.encode(msgspec.structs.replace(holder, renewals=holder.renewals + 1, **changes))

    return folder.change(name, renewed)


def read_holder(folder: Storage, name: str, kind: type[H]) -> tuple[H | None, str | None]:
    """Who holds a file, and its version; None for content that cannot be read, such as a power failure may leave."""
    found = folder.read_version(name)
    return (_holder(found[0], kind), found[1]) if found else (None, None)


def _holder(content: bytes, kind: type[H]) -> H | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(content, type=kind)
    return None


def _command() -> str:
    """What was run, without its flags: those may hold secrets."""
    program = os.path.basename(sys.argv[0])
    words = ["owt" if program == "__main__.py" else program, *sys.argv[1:2]]
    return " ".join(word for word in words if not word.startswith("-"))
