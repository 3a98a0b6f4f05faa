"""import: text of one's own as documents/, in place of collect, fetch and extract."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.stage import Stage, StageRun
from owt_pipeline.engine.storage import describe_source, expand_globs, open_source
from owt_pipeline.stage_command import main
from schemas import option

logger = logging.getLogger("owt")


@dataclass(frozen=True)
class ImportOptions:
    files: tuple[str, ...] = option(
        (),
        "JSON Lines, Parquet or plain text, as they are or compressed (.gz, .zst, .xz, .bz2): paths, folders, globs",
        metavar="FILE",
        shapes_bytes=False,  # their content does, and is in the fingerprint; where they lie does not
    )
    format: str = option(
        "auto", "what the files are; auto goes by the extension", choices=("auto", "jsonl", "parquet", "text")
    )
    text_field: str = option("text", "field (a.b for field b of field a) or column that holds the text")
    url_field: str = option("url", "field of the URL, which gives the document its id; without one the text does")
    title_field: str = option("title", "field of the title")
    author_field: str = option("author", "field of the author")
    date_field: str = option("date", "field of the date of publication (YYYY-MM-DD...)")
    language_field: str = option("language", "field of the language (ISO 639-1)")
    split_text: str = option(
        "file",
        "a plain text file is one document; or blank lines separate them; or each article of WikiText is one",
        choices=("file", "blank_lines", "wikitext"),
    )
    num_shards: int = option(8, "shards of the dataset, and of all that follow", minimum=1, maximum=100_000)


def sources(options: ImportOptions) -> list[dict[str, Any]]:
    """What identifies each file: whole digests of uncompressed ones, which end in no checksum of their own."""
    described = []
    for path, name in _named(options):
        entry = describe_source(path)
        if not path.endswith((".gz", ".zst", ".xz", ".bz2", ".parquet")):
            entry = {"bytes": entry["bytes"], "sha256": _sha256(path)}
        described.append({**entry, "name": name})
    return described


def run(run: StageRun) -> None:
    from owt_pipeline.import_text.documents import PLACED, FieldNames
    from owt_pipeline.import_text.records import format_of
    from owt_pipeline.import_text.sharding import SourceFile, group_files, merge_shard, place_group

    options: ImportOptions = run.options
    files = []
    for path, name in _named(options):
        kind = format_of(path) if options.format == "auto" else options.format
        with open_source(path) as source:
            files.append(SourceFile(path, name, kind, source.size()))
    groups = group_files(files)
    place = partial(
        place_group,
        groups=groups,
        names=FieldNames(
            options.text_field,
            options.url_field,
            options.title_field,
            options.author_field,
            options.date_field,
            options.language_field,
        ),
        split_text=options.split_text,
        num_shards=options.num_shards,
    )
    records = run.write_step("records", range(len(groups)), place, PLACED)
    paths = [record.files[0].path for record in records]
    merge = partial(merge_shard, folder=run.work / "records", paths=paths)
    written = run.write_shards(merge, rows=sum(record.files[0].rows for record in records))
    if not any(record.counts.left for record in written):
        logger.warning("import: no document came in; ledger/documents/rejects/ says why (is --text_field right?)")


def _named(options: ImportOptions) -> list[tuple[str, str]]:
    """(path, name) of each file; the names are relative to the folder that holds them all, so they are distinct."""
    if not options.files:
        raise UserError("import: no files given: `owt import FILE... --workdir DIR`")
    paths = expand_globs(options.files, "import")
    places = ["/" + path if "://" in path else os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(place) for place in places])
    return [(path, os.path.relpath(place, folder)) for path, place in zip(paths, places, strict=True)]


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open_source(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


STAGE = Stage(
    name="import",
    output="documents",
    inputs=(),
    options=ImportOptions,
    version=2,
    run=run,
    help="Bring text of your own in as documents/, in place of collect, fetch and extract. A document's id is\n"
    "the hash of its canonical URL, or of its text where it has none; of equal ids the first one stays.",
    sources=sources,
    num_shards=lambda options: options.num_shards,
    positional="files",
    example="owt import posts/*.jsonl.zst --workdir runs/mine --text_field body --url_field link",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
