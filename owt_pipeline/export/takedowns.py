"""The documents that export has to forget, also where clean/ was discarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from owt_pipeline.formats.takedowns import takedowns_of_chain
from owt_pipeline.ledger.bases import folders_of_chain
from owt_pipeline.ledger.dataset import DatasetReader, is_discarded, read_manifest
from owt_pipeline.storage.folder import Storage


def corpus_in_place_of_clean(workdir: Storage) -> DatasetReader | None:
    """The finished corpus if clean/ was discarded; with its rejects, it has every document of clean/."""
    manifest = read_manifest(workdir, "corpus") if is_discarded(workdir, "clean") else None
    return DatasetReader(workdir, manifest) if manifest is not None else None


def forgotten_in_shards(
    workdir: Storage, inputs: Mapping[str, DatasetReader]
) -> Callable[[int], list[tuple[int, str]]]:
    """A function from a shard to the (url_id, detail) of its clean documents that export would forget."""
    takedowns = takedowns_of_chain(workdir, folders_of_chain(workdir))
    corpus = corpus_in_place_of_clean(workdir)
    sources = [(corpus, "data"), (corpus, "rejects")] if corpus else [(inputs["clean"], "data")]

    def named(shard: int) -> list[tuple[int, str]]:
        found = []
        for reader, kind in sources if takedowns.ids or takedowns.domains else ():
            for batch in reader.batches(shard, kind=kind, columns=["url_id", "url"], rows=1 << 16):
                ids = batch["url_id"].to_numpy()
                found += [(int(ids[row]), detail) for row, detail in takedowns.of(ids, batch["url"])]
        return sorted(found)

    return named
