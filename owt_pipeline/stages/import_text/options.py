"""Options of import: the files, the names of their fields, and how plain text is split."""

from __future__ import annotations

from dataclasses import dataclass

from owt_pipeline.formats.files import FORMATS
from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    files: tuple[str, ...] = option(
        (),
        "JSON Lines, Parquet, CSV or plain text, plain or compressed (.gz, .zst, .xz, .bz2): "
        "files, folders or globs",
        metavar="FILE",
        is_path=True,
        shapes_bytes=False,  # the key includes the files' content instead of their paths
    )
    format: str = option(
        "auto",
        "format of the files; auto decides by the content, and for CSV and text by the extension",
        choices=("auto", *FORMATS),
    )
    text_field: str = option("text", "field or column with the text; a.b is field b of field a")
    url_field: str = option(
        "url",
        "field with the URL; its hash is the document's id (without a URL, the text's hash)",
    )
    title_field: str = option("title", "field with the title")
    author_field: str = option("author", "field with the author")
    date_field: str = option("date", "field with the date of publication, such as 2019-01-31")
    language_field: str = option("language", "field with the language (ISO 639-1)")
    split_text: str = option(
        "file",
        "documents of a plain text file: one per file, per block between blank lines, or per "
        "WikiText article",
        choices=("file", "blank_lines", "wikitext"),
    )
    num_shards: int | None = option(
        None,
        "shards of a generation (default: about one for 20,000 documents, at least 8)",
        minimum=1,
        maximum=100_000,
        shapes_bytes=False,  # the generation has it
    )
