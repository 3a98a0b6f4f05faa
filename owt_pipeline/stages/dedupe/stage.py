"""dedupe: find exact and near-duplicates; every near-duplicate is verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from owt_pipeline.engine.stage import Stage, StageRun, Step, one_part, rows_of_input, what_was_sent
from owt_pipeline.engine.workers import start_server
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import Base, place_of, relative_uri
from owt_pipeline.ledger.dataset import DatasetReader, require_manifest
from owt_pipeline.stages.dedupe import chain
from owt_pipeline.stages.dedupe.chain import banding_of, sketcher_of, worth_compiling
from owt_pipeline.stages.dedupe.collection import (
    SKETCH,
    Collection,
    Earlier,
    check_sketches,
    open_earlier,
    read_collection,
    write_collection,
)
from owt_pipeline.stages.dedupe.options import Options
from owt_pipeline.stages.dedupe.verification import Largest, merge_largest
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.manifest import Counts

if TYPE_CHECKING:
    from schemas.manifest import ShardRecord


LEAST_DOCUMENTS = 1000
"""Below this count, a cluster or host raises no alarm."""

_SHOWN_CHARACTERS = 100


def _open_other(workdir: str, made_with: Mapping[str, object]) -> Earlier:
    folder = Storage(workdir)
    decisions = DatasetReader.open(folder, "duplicates")
    return open_earlier(workdir, decisions, DatasetReader.open(folder, "clean"), made_with)


def _raise_alarm(options: Options, collection: Collection, largest: Largest) -> None:
    """Raise UserError for a cluster or host so large that it is probably a mistake."""
    corpus = collection.own_documents
    found = [
        (f"the cluster of url_id {cluster.kept_url_id}", "max_cluster_share", cluster.documents - 1, cluster.sample)
        for cluster in largest.clusters[:1]
    ]
    found += [(f"the host {host.host}", "max_host_share", host.documents, host.sample) for host in largest.hosts[:1]]
    for what, name, documents, sample in found:
        share = getattr(options, name)
        if documents < LEAST_DOCUMENTS or documents <= share * corpus:
            continue
        texts = [(url, " ".join(text.split())) for url, text in _read_sample(collection, sample)]
        shown = "".join(
            f"\n  {url or '(no URL)'}: {text[:_SHOWN_CHARACTERS]}{'…' * (len(text) > _SHOWN_CHARACTERS)}"
            for url, text in texts
        )
        raise UserError(
            f"dedupe: {what} has {documents:,} documents that repeat others, {documents / corpus:.1%} of the corpus, "
            f"more than --{name} {share:g} allows. Often this is one page under many URLs (an error, a consent form) "
            f"that should have been rejected earlier. Examples:{shown}\n"
            f"To remove them anyway, raise --{name} (1 allows all); the run continues from here."
        )


def _read_sample(collection: Collection, documents: list[int]) -> list[tuple[str, str]]:
    """(URL, text) of some documents, for the error message."""
    first = [part.first for part in collection.parts]
    found = []
    for document in documents:
        number = int(np.searchsorted(first, document, side="right")) - 1
        (batch,) = collection.read(number, ["url", "text"], np.array([document]))
        found.append((batch["url"][0].as_py(), batch["text"][0].as_py()))
    return found


def _made_with(options: Options) -> dict[str, object]:
    """What sketches must agree on to be comparable."""
    sketcher = sketcher_of(options)
    return {
        "ngram": sketcher.n,
        "shingles": sketcher.kind,
        "bands": sketcher.banding.bands,
        "rows": sketcher.banding.rows,
        "stage_version": Dedupe.version,
    }


def _summed(records: Sequence[ShardRecord]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.stats)
    return dict(total)


def _parts(run: StageRun) -> range:
    return range(len(read_collection(run).own_parts))


def _rows_of_parts(run: StageRun) -> list[int]:
    return [part.rows for part in read_collection(run).own_parts]


class Dedupe(Stage):
    """Find exact copies by a hash of the normalised text, then near-duplicates by MinHash LSH, each verified by
    the exact similarity of the shingle sets. Nothing is deleted: duplicates/ names each document to remove, the
    one to keep and their similarity; export applies these decisions.
    """

    name = "dedupe"
    inputs = ("clean",)
    bases: tuple[str, ...] = ("clean", "duplicates")
    output = "duplicates"
    options = Options
    version = 5
    libraries = ("numpy", "xxhash")
    steps: tuple[Step, ...] = (
        Step(chain.sketch, SKETCH, keys=_parts, rows=_rows_of_parts, spread="shards"),
        Step(chain.find_edges, "buckets", keys=what_was_sent, spread="shards"),
        Step(chain.merge_forests, "forests", keys=what_was_sent, spread="shards"),
        Step(chain.join_components, "join", keys=one_part),
        Step(chain.shingle, "shingle", keys=what_was_sent, spread="shards"),
        Step(chain.verify, "verify", keys=what_was_sent, spread="shards"),
        Step(chain.write_decisions, rows=rows_of_input, spread="shards"),
    )
    example = "owt dedupe --workdir runs/2013 --threshold 0.85 --survivor highest_score"

    def sources(self, options: Options) -> list[dict[str, Any]]:
        """Digests of the corpora named by --against; raises UserError for invalid options and for corpora that cannot
        be compared with, before existing decisions are deleted."""
        if options.against or options.bands is not None or options.rows is not None:
            made_with = _made_with(options)
            for workdir in options.against:
                _open_other(workdir, made_with)
        others = [Storage(workdir) for workdir in options.against]
        return [
            {"kind": "corpus", "name": place_of(other).rpartition("/")[2]}
            | {name: require_manifest(other, name).digest for name in ("clean", "duplicates")}
            for other in others
        ]

    def preload(self, _: Options) -> list[str]:
        """What every worker needs before its first part: a table, and modules that numpy imports on first use."""
        return ["owt_pipeline.stages.dedupe.shingles:character_table", "numpy.ma", "numpy.polynomial", "numpy.random"]

    def fits(self, options: Options, base: Base) -> None:
        """Raise UserError unless the base's sketches were made with these options."""
        check_sketches(base.workdir.uri, base.manifests["duplicates"], _made_with(options))

    def prepare(self, run: StageRun) -> None:
        options: Options = run.options
        made_with, workers = _made_with(options), run.runtime.workers
        bases = {base.manifests["clean"].digest for base in run.bases}
        for workdir in options.against:
            digest = require_manifest(Storage(workdir), "clean").digest
            if digest == run.inputs["clean"].manifest.digest:
                raise UserError(f"--against names this run, or one with the same documents: {workdir}; remove it")
            if digest in bases:
                raise UserError(f"--against names {workdir}, a base of this run, which is compared anyway; remove it")
        if workers > 1 and worth_compiling(options, run.inputs["clean"], workers):
            start_server(["owt_pipeline.stages.dedupe.sketches:least_values"])
        earlier = [
            open_earlier(base.workdir.uri, base.reader("duplicates"), base.reader("clean"), made_with)
            for base in run.bases
        ]
        earlier += [_open_other(workdir, made_with) for workdir in options.against]
        write_collection(run, earlier, banding_of(options).bands)

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        """Sum up the counts, record the largest clusters; raises UserError if a cluster or host exceeds its share."""
        options: Options = run.options
        collection, banding = read_collection(run), banding_of(options)
        verified = run.read_records("verify")
        files = [file.path for record in verified for file in record.files if file.kind == chain.LARGEST]
        largest = merge_largest(msgspec.json.decode(run.work.read(path), type=Largest) for path in files)
        _raise_alarm(options, collection, largest)
        written = _summed(records)
        rejected = {str(Reason.EXACT_DUPLICATE): written["exact"], str(Reason.NEAR_DUPLICATE): written["near"]}
        rejected = {reason: count for reason, count in rejected.items() if count}
        run.counts = Counts(collection.own_documents, written["stay"], rejected)
        run.stats.update(
            _summed([*verified, *(r for step in (SKETCH, "buckets", "join") for r in run.read_records(step))])
        )
        # Where to find documents whose kept_shard is beyond the run's own shards.
        bases = [
            {"uri": relative_uri(run.workdir, base.workdir), "shards": base.manifests["clean"].num_shards}
            for base in run.bases
        ]
        run.properties.update(
            threshold=options.threshold,
            num_perm=options.num_perm,
            bands=banding.bands,
            rows=banding.rows,
            curve=banding.curve(),
            largest_clusters=[
                {name: getattr(cluster, name) for name in ("kept_url_id", "kept_shard", "documents")}
                for cluster in largest.clusters
            ],
            sketches=msgspec.to_builtins(collection.corpora[0].ranges),
            **({"bases": bases} if bases else {}),
            against=[relative_uri(run.workdir, Storage(workdir)) for workdir in options.against],
            against_shards=[require_manifest(Storage(workdir), "clean").num_shards for workdir in options.against],
        )


STAGE = Dedupe()
