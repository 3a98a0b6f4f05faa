"""Runs that build on finished runs: a chain, pinned by the hashes of its manifests.

A run's folder names its bases, so every process on every runner finds them there:

    bases.json          its bases, each with the SHA-256 of its manifests; written when the run begins
    dependents.jsonl    the runs that have this one as a base, one per line
    revisions.jsonl     intended changes (`owt forget`): the manifests before and after, one revision per line

A base that differs from what was pinned is an error, unless its revisions lead from the pinned to the current state.
Paths are relative for folders next to each other, so that a chain can be moved as one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, require_run
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.datasets import SCHEMA_VERSION
from schemas.manifest import MANIFEST_NAME, Manifest, ManifestError, ledger_of, seal, unseal

logger = logging.getLogger("owt")

BASES = "bases.json"
DEPENDENTS = "dependents.jsonl"
REVISIONS = "revisions.jsonl"
FORGOTTEN = "forgotten.jsonl"
"""A run's list of takedowns, which applies to the runs that build on it too."""
RETRIED = "retried.json"
"""A run's list of shards whose failed URLs were fetched again."""

_NEEDED = ("clean", "duplicates", "corpus")
_FROM_BASES = ("urls", "duplicates", "corpus", "tokens")  # datasets made from those of bases too


class PinnedManifest(msgspec.Struct, frozen=True):
    """A dataset of a base when it was pinned: SHA-256 of its manifest, digest over its files, number of rows."""

    sha256: str
    digest: str
    rows: int


class Pinned(msgspec.Struct, frozen=True):
    """A base of a run.

    Attributes:
      uri: its folder, relative to the run's own if they are next to each other.
      name: name of that folder when it was first pinned; the details of rejects use it even after the folder was
        renamed.
      manifests: its datasets.
      forgotten: SHA-256 of its list of takedowns; empty for none.
    """

    uri: str
    name: str
    manifests: dict[str, PinnedManifest]
    forgotten: str = ""

    @property
    def state(self) -> dict[str, str]:
        """The SHA-256 of each manifest and of the list of takedowns."""
        return {name: pinned.sha256 for name, pinned in self.manifests.items()} | {FORGOTTEN: self.forgotten}


class _Bases(msgspec.Struct, frozen=True):
    bases: list[Pinned]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Base:
    """A finished run that another one builds on; `name` is that of its folder when it was pinned."""

    name: str
    workdir: Storage
    manifests: Mapping[str, Manifest]
    pinned: Pinned

    def reader(self, dataset: str) -> DatasetReader:
        """Raises UserError if the base has no such dataset."""
        return DatasetReader.open(self.workdir, dataset)

    def sha256(self, dataset: str) -> str:
        """SHA-256 of a dataset's manifest; raises UserError if there is no such dataset."""
        if dataset not in self.pinned.manifests:
            raise UserError(
                f"base {self.workdir} has no finished {dataset}/: run `owt {DATASETS[dataset].stage} --workdir "
                f"{self.workdir}` first"
            )
        return self.pinned.manifests[dataset].sha256


def open_chain(workdir: Storage) -> tuple[Base, ...]:
    """All runs that a run builds on, including bases of bases: the oldest first, each once.

    Raises UserError if one of them is missing, unfinished, or has changed since it was pinned.
    """
    return tuple(_checked(_walk(workdir, (), set())))


def described(chain: Iterable[Base], names: Sequence[str]) -> list[dict[str, Any]]:
    """For the fingerprint of a stage that reads `names` of its bases: what it depends on.

    Raises UserError if a base lacks a dataset that the stage needs.
    """
    sources = []
    for base in chain if names else ():
        source: dict[str, Any] = {"kind": "base", "name": base.name}
        for name in names:
            if name == FORGOTTEN:
                source[name] = base.pinned.forgotten
            elif name == "tokens":  # referred to by the hash of its manifest
                source[name] = base.sha256(name)
            elif name in base.manifests:
                source[name] = base.manifests[name].digest
        sources.append(source)
    return sources


def folders_of_chain(workdir: Storage) -> list[Storage]:
    """The folders of `open_chain`, in its order, without a check of their content; raises UserError for a circle."""
    return [base for _, base, _ in _walk(workdir, (), set())]


class Builder(Protocol):
    """The part of `Stage` that `pin` needs."""

    @property
    def bases(self) -> tuple[str, ...]: ...

    @property
    def fits(self) -> Callable[[Any, Base], None]: ...


def pin(
    workdir: Storage, given: Sequence[str], stages: Sequence[tuple[Builder, Any]] = (), *, write: bool = True
) -> tuple[Base, ...]:
    """Make the runs at `given` (paths or URIs) the bases of a run, and return its chain.

    If none are given, those that were pinned before remain. Datasets that a base has gained since are pinned too, and
    so is a revision of a base; any other change is an error. The process must hold the lease on `workdir`.

    Raises UserError for a folder that cannot be a base, or that one of `stages`, with its options, cannot build on.
    """
    before = read_pinned(workdir)
    places = [place_of(Storage(uri)) for uri in given]
    known = [resolve_uri(workdir, pinned.uri) for pinned in before]
    if before and places:
        known = _moved(before, known, places)
    if before and places and sorted(set(places)) != sorted(known):
        raise UsageError(
            f"{workdir} builds on {', '.join(known)}, not on {', '.join(places)}: give the same --base, or another "
            "--workdir"
        )
    if place_of(workdir) in places:
        raise UsageError(f"--base {workdir} is the run itself: give the folder of an earlier run")
    now: list[Base] = []
    reasons: list[str] = []
    for pinned, place in zip(before, known, strict=True):
        base = _look_at(Storage(place), relative_uri(workdir, Storage(place)), pinned.name)
        if why := _check(workdir, base, pinned):
            logger.info("base %s was revised (%s): what depends on it runs again", base.workdir, why)
            reasons.append(f"{base.name} was revised: {why}")
        now.append(base)
    for place in () if before else dict.fromkeys(places):
        folder = Storage(place)
        if place_of(workdir) in map(place_of, folders_of_chain(folder)):
            raise UserError(f"--base {folder} builds on {workdir} itself: a chain of runs cannot be a circle")
        now.append(_look_at(folder, relative_uri(workdir, folder)))
    found: dict[str, Base] = {}
    for base in now:
        for earlier in _checked(_walk(base.workdir, (place_of(workdir),), set(found))):
            found[place_of(earlier.workdir)] = earlier
        found.setdefault(place_of(base.workdir), base)
    chain = tuple(found.values())
    for stage, options in stages:
        described(chain, stage.bases)
        for base in chain:
            stage.fits(options, base)
    if write:
        with contextlib.suppress(UserError):  # of a damaged manifest, whose stage runs again
            corpus = read_manifest(workdir, "corpus")
            if corpus is not None and has_new_takedowns(workdir, corpus):
                reasons.append(f"{FORGOTTEN} was edited")
        if reasons:
            begin_revision(workdir, "; ".join(reasons))
        if (pins := [base.pinned for base in now]) != before:
            workdir.write(BASES, seal(_Bases(pins)))
        for base in now:
            _register(base.workdir, workdir)
    return chain


def _moved(before: Sequence[Pinned], known: Sequence[str], places: Sequence[str]) -> list[str]:
    """`known`, the places of the bases, in which each moved base has its new place: one of `places` that holds the same
    manifests."""
    found = list(known)
    for place in places:
        if place not in known:
            now = _look_at(Storage(place), place).pinned.state
            for at, pinned in enumerate(before):
                if known[at] not in places and pinned.state.items() <= now.items():
                    found[at] = place
    return found


def read_pinned(workdir: Storage) -> list[Pinned]:
    """The bases of a run as they were pinned; raises UserError if the file is damaged."""
    try:
        return unseal(workdir.read(BASES), _Bases, workdir.path(BASES)).bases
    except FileNotFoundError:
        return []
    except ManifestError as error:
        raise UserError(f"{error}. Restore it, or remove it and give --base again") from error


def begin_revision(workdir: Storage, why: str) -> None:
    """Record that a finished run is about to be changed on purpose; the process must hold the lease.

    Has no effect on an unfinished run: no other run can have pinned it, or a revision has begun already.
    """
    lines = _read_lines(workdir, REVISIONS)
    with contextlib.suppress(UserError):
        now = _look_at(workdir, workdir.uri, before_edits=True).pinned
        if not lines or "to" in lines[-1]:
            workdir.write(REVISIONS, _as_lines([*lines, {"why": why, "from": now.state}]))


def end_revision(workdir: Storage) -> None:
    """Record the end of the current revision, if any; has no effect until the run is finished again."""
    lines = _read_lines(workdir, REVISIONS)
    if lines and "to" not in lines[-1]:
        with contextlib.suppress(UserError):
            now = _look_at(workdir, workdir.uri).pinned
            if not out_of_date(workdir):
                lines[-1]["to"] = now.state
                workdir.write(REVISIONS, _as_lines(lines))


def out_of_date(workdir: Storage) -> list[str]:
    """The datasets of a run that were made from an earlier state of its bases; raises UserError as `open_chain`."""
    chain = open_chain(workdir)
    found = []
    for dataset in _FROM_BASES:
        manifest = read_manifest(workdir, dataset)
        if manifest is not None and manifest.stage != "import":
            made_from = [source for source in manifest.sources if source.get("kind") == "base"]
            names = {name for source in made_from for name in source} - {"kind", "name"}
            if len(made_from) != len(chain) or made_from != described(chain, sorted(names)):
                found.append(dataset)
    return found


def dependents_of(workdir: Storage) -> list[Storage]:
    """The existing runs that build on this one, directly or through others."""
    found: dict[str, Storage] = {}
    waiting = [workdir]
    while waiting:
        base = waiting.pop(0)
        for line in _read_lines(base, DEPENDENTS):
            dependent = Storage(resolve_uri(base, line["uri"]))
            pinned = {resolve_uri(dependent, pinned.uri) for pinned in read_pinned(dependent)}
            if place_of(base) in pinned and place_of(dependent) not in found:
                found[place_of(dependent)] = dependent
                waiting.append(dependent)
    return list(found.values())


def place_of(folder: Storage) -> str:
    """A folder's path or URI in one normal form."""
    return os.path.realpath(folder.uri) if folder.is_local else folder.uri


def relative_uri(workdir: Storage, other: Storage) -> str:
    """The place of `other` as written in the files of `workdir`: relative if both are in the folder that holds
    `workdir`."""
    parent, place = place_of(workdir).rpartition("/")[0], place_of(other)
    return f"../{place[len(parent) + 1 :]}" if place.startswith(f"{parent}/") else place


def resolve_uri(workdir: Storage, uri: str) -> str:
    """The place for which `relative_uri` returned `uri`."""
    return f"{place_of(workdir).rpartition('/')[0]}/{uri[3:]}" if uri.startswith("../") else uri


def _walk(run: Storage, path: tuple[str, ...], seen: set[str]) -> Iterator[tuple[Storage, Storage, Pinned]]:
    """(run, base, base as the run pinned it) for each base of the run at the end of `path`, and for the bases of bases:
    the oldest first, without those `seen`. Raises UserError for a circle."""
    path = (*path, place_of(run))
    for pinned in read_pinned(run):
        base = Storage(resolve_uri(run, pinned.uri))
        if (place := place_of(base)) in path:
            raise UserError(f"the runs build on each other in a circle: {' -> '.join((*path, place))}")
        if place not in seen:
            seen.add(place)
            yield from _walk(base, path, seen)
            yield run, base, pinned


def _checked(walk: Iterator[tuple[Storage, Storage, Pinned]]) -> Iterator[Base]:
    """Each base, as it was pinned; raises UserError for one that has changed since."""
    for run, folder, pinned in walk:
        base = _look_at(folder, pinned.uri, pinned.name)
        if why := _check(run, base, pinned):
            raise UserError(
                f"{base.workdir}, a base of {run}, was revised ({why}): run `owt run` for {run}, which then runs "
                "export and tokenize again"
            )
        yield replace(base, manifests={name: base.manifests[name] for name in pinned.manifests}, pinned=pinned)


def _look_at(base: Storage, uri: str, name: str = "", *, before_edits: bool = False) -> Base:
    """A base as it is now, under the name `name` or that of its folder.

    Raises UserError if it is missing, unfinished, or of another schema version. If its list of takedowns was edited
    since corpus/ was made, it is unfinished too, unless `before_edits`.
    """
    found: dict[str, PinnedManifest] = {}
    manifests: dict[str, Manifest] = {}
    for dataset in DATASETS:
        try:
            data = base.read(f"{ledger_of(dataset)}/{MANIFEST_NAME}")
            manifest = Manifest.from_json(data, base.path(f"{ledger_of(dataset)}/{MANIFEST_NAME}"))
        except FileNotFoundError:
            continue
        except ManifestError as error:
            raise UserError(f"base {base} cannot be used: {error}") from error
        found[dataset] = PinnedManifest(hashlib.sha256(data).hexdigest(), manifest.digest, manifest.total("data").rows)
        manifests[dataset] = manifest
    if not found:
        require_run(base, "where the base was moved, give --base with its new place")
    for dataset in _NEEDED:
        if dataset not in found:
            raise UserError(f"base {base} is not finished: it has no {dataset}/; finish it (`owt run`) first")
    for made, manifest in manifests.items():
        for dataset, digest in manifest.inputs.items():
            if dataset in found and found[dataset].digest != digest:
                raise UserError(
                    f"base {base} is not finished: {made}/ was made from another {dataset}/ than it has now; finish "
                    "it (`owt run`) first"
                )
    if not before_edits and has_new_takedowns(base, manifests["corpus"]):
        raise UserError(
            f"base {base} is not finished: its {FORGOTTEN} has changed since corpus/ was made; finish it (`owt run`) "
            "first"
        )
    name = name or place_of(base).rpartition("/")[2]
    return Base(name, base, manifests, Pinned(uri, name, found, _applied_takedowns(manifests["corpus"])))


def has_new_takedowns(workdir: Storage, corpus: Manifest) -> bool:
    """Whether the run's list of takedowns has changed since its corpus was made."""
    return _applied_takedowns(corpus) != (workdir.sha256(FORGOTTEN) if workdir.exists(FORGOTTEN) else "")


def _applied_takedowns(corpus: Manifest) -> str:
    """The digest of the list that a corpus was made with; empty if there was none."""
    return next((source["sha256"] for source in corpus.sources if source.get("name") == FORGOTTEN), "")


def _check(run: Storage, base: Base, pinned: Pinned) -> str:
    """Why a base of `run` was revised since it was pinned; empty if it is unchanged. Raises UserError for any other
    change. A new dataset is not a change."""
    now = base.pinned
    found = []
    for name, was in pinned.manifests.items():
        if name not in now.manifests:
            found.append(f"{name}/ is gone")
        elif (is_now := now.manifests[name]).digest != was.digest:
            found.append(f"{name}/ has other files ({was.rows:,} rows then, {is_now.rows:,} now)")
        elif is_now.sha256 != was.sha256:
            found.append(f"the manifest of {name}/ is another, of the same files")
    if now.forgotten != pinned.forgotten:
        found.append(f"{FORGOTTEN} is another")
    if not found:
        return ""
    state = pinned.state
    reasons: list[str] = []
    unfinished = ""
    for line in _read_lines(base.workdir, REVISIONS):  # do they lead from the pinned state to the current one?
        if all(line["from"].get(name) == sha256 for name, sha256 in state.items()):
            unfinished = "" if "to" in line else line["why"]
            state, reasons = line.get("to", state), [*reasons, line["why"]]
    if unfinished and state != now.state:
        raise UserError(
            f"base {base.workdir} is not finished: a revision has begun ({unfinished}); finish it (`owt run`)"
        )
    if not reasons or state != now.state:
        raise UserError(
            f"{base.workdir}, a base of {run}, has changed since: {'; '.join(found)}. Restore it as it was, or remove "
            f"{run.path(BASES)} and run with --base again to build on it as it is now"
        )
    return "; ".join(reasons)


def _register(base: Storage, workdir: Storage) -> None:
    """Add a run to the dependents of its base; only warns if the base cannot be written to."""
    line = {"uri": relative_uri(base, workdir)}

    def add(content: bytes | None) -> bytes | None:
        lines = _parsed(content or b"", base)
        return None if line in lines else _as_lines([*lines, line])

    try:
        base.change(DEPENDENTS, add)
    except (OSError, UserError) as error:
        logger.warning("cannot add %s to the dependents of %s (%s): owt forget will not list it", workdir, base, error)


def _read_lines(workdir: Storage, name: str) -> list[dict[str, Any]]:
    try:
        found = workdir.read_version(name)
    except NotADirectoryError:  # there is a file in place of the run's folder: writing to it will raise a clear error
        return []
    return _parsed(found[0], workdir) if found else []


def _parsed(data: bytes, workdir: Storage) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in data.decode().splitlines()]
    except ValueError as error:
        raise UserError(f"{workdir}: {DEPENDENTS} or {REVISIONS} is damaged: {error}") from error


def _as_lines(entries: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()
