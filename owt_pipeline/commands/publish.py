"""`owt publish`: send the corpus to the Hugging Face Hub, with a card made from the manifests."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.commands.card import Config, licence_id, published_card
from owt_pipeline.engine.keys import Cause, rebuild_advice
from owt_pipeline.engine.takedowns import in_force
from owt_pipeline.errors import UsageError, UserError, command
from owt_pipeline.ledger.commit import surviving_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_run
from owt_pipeline.stages.export.corpus import applied_takedowns
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import mention_running
from schemas import DATASETS
from schemas.datasets import is_validation
from schemas.manifest import Manifest, ShardFile
from schemas.quantities import pluralize

HUB = "hf://"

LISTED = ("url_id", "url", "score", "created_utc", "subreddits", "language", "license", "n_words")
"""The columns of a list of URLs, as OpenWebText's was shared: nothing that a page's author
wrote."""

SPLITS = ("train", "validation")

# Packages whose errors are the network's. Which one it is depends on the Hub's version.
_CLIENTS = ("huggingface_hub", "httpx", "httpx2", "requests")


def _flags(parser: CommandParser) -> None:
    """Publish the corpus as a dataset on the Hugging Face Hub: Parquet files in the splits train
    and validation, and a card with the run's figures. Without --yes, the command prints the card
    and the number of files, and sends nothing. After an interruption, run the same command again to
    continue. If you publish again later, documents that are no longer in the corpus are deleted
    from the dataset, too. The command uses the token of `hf auth login` or $HF_TOKEN.

    examples:
      owt publish runs/2013 hf://someone/openwebtext-2013
      owt publish runs/2013 hf://someone/openwebtext-2013 --urls_only --public --yes
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "destination",
        metavar="hf://OWNER/NAME",
        help="dataset to write; it is created if it does not exist",
    )
    parser.add_argument(
        "--urls_only", action="store_true", help="publish the URLs without the texts"
    )
    parser.add_argument(
        "--license",
        type=licence_id,
        default="other",
        metavar="ID",
        help="licence of the dataset, as an identifier of the Hub (default: other)",
    )
    parser.add_argument(
        "--card",
        type=os.path.expanduser,
        default="",
        metavar="FILE",
        help="README.md to send in place of the card that is made from the run. Without --yes, the "
        "command prints that card, so you can save and edit it",
    )
    parser.add_argument(
        "--contact",
        default="",
        metavar="TEXT",
        help="contact for takedowns, for the card (default: the dataset's discussions)",
    )
    parser.add_argument(
        "--public", action="store_true", help="make a new repository public (default: private)"
    )
    parser.add_argument(
        "--squash",
        action="store_true",
        help="delete the repository's older revisions, which still contain documents that were "
        "taken down; this cannot be undone",
    )
    parser.add_argument(
        "--yes", action="store_true", help="send the files (default: only print the card)"
    )


Upload = tuple[ShardFile, dict[tuple[str, str], str]]
"""A shard of the corpus, and the files in the repository that it becomes, by (configuration,
split)."""


def _publish(arguments: argparse.Namespace) -> int:
    """Print what would be sent; send it with `--yes`."""
    name = arguments.destination.removeprefix(HUB)
    if not arguments.destination.startswith(HUB) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"{arguments.destination} is not {HUB}OWNER/NAME")
    workdir = Storage(arguments.run)
    mention_running(workdir)
    corpus = DatasetReader.open(workdir, "corpus")
    tokens = DatasetReader.open(workdir, "tokens")
    takedowns = in_force(workdir, require_run(workdir)).takedowns
    # Such a corpus may still contain documents that were taken down.
    if takedowns != applied_takedowns(corpus.manifest):
        raise UserError(rebuild_advice(Cause("takedowns"), "corpus", workdir))
    fraction = float(tokens.manifest.options["val_fraction"])
    configs = _configs(corpus, urls_only=arguments.urls_only)
    uploads = plan(corpus, configs, fraction)
    if arguments.card:
        card = _read_card(arguments.card)
    else:
        card = dataset_card(
            workdir, name, configs, license=arguments.license, contact=arguments.contact
        )
    content = pluralize(corpus.rows(), "document")
    if arguments.urls_only:
        content = f"{pluralize(corpus.rows(), 'URL')} without texts"
    num_files = sum(len(paths) for _, paths in uploads)
    print(f"{content} in {pluralize(num_files, 'file')}, to {HUB}{name}")
    if not arguments.yes:
        print(f"\n{card}\nNothing was sent: repeat the command with --yes to send it.")
        return 0
    _send(
        name,
        corpus,
        uploads,
        fraction,
        card,
        public=arguments.public,
        squash=arguments.squash,
    )
    print(f"published: {arguments.destination}")
    return 0


def _configs(corpus: DatasetReader, *, urls_only: bool) -> list[str]:
    """Return the configurations to publish: `urls` only if a document has a URL.

    Raises UserError if only URLs were asked for and there is none.
    """
    has_urls = any(
        batch["url"].null_count < batch.num_rows for batch in corpus.batches(columns=["url"])
    )
    if urls_only and not has_urls:
        raise UserError(
            f"{corpus.workdir}/corpus has no URLs, because its texts were imported without them: "
            "publish it without --urls_only"
        )
    configs = [] if urls_only else ["corpus"]
    return [*configs, "urls"] if has_urls else configs


def _read_card(path: str) -> str:
    """Return a card of the user's own; raise UserError if it cannot be read as text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--card {path}: {error}") from error


def plan(corpus: DatasetReader, configs: Sequence[str], fraction: float) -> list[Upload]:
    """Return the files that each shard becomes.

    A file is named by its content, so the Hub knows those that were sent before.
    """
    uploads: list[Upload] = []
    for file in corpus.files("data"):
        is_held_out = is_validation(corpus.ids(file.shard), fraction)
        # Readers of the Hub refuse a file without rows.
        splits = [SPLITS[split] for split in sorted(set(is_held_out.tolist()))]
        paths: dict[tuple[str, str], str] = {}
        for config in configs:
            columns = _columns(config, corpus.schema(file))
            content = f"{file.sha256} {config} {fraction} {columns}"
            digest = hashlib.sha256(content.encode()).hexdigest()[:8]
            for split in splits:
                paths[config, split] = f"{config}/{split}/part-{file.shard:05d}-{digest}.parquet"
        uploads.append((file, paths))
    return uploads


def _columns(config: str, schema: pa.Schema) -> list[str]:
    """Return the columns of a configuration."""
    return [name for name in schema.names if config == "corpus" or name in LISTED]


def _send(
    name: str,
    corpus: DatasetReader,
    uploads: Sequence[Upload],
    fraction: float,
    card: str,
    *,
    public: bool,
    squash: bool,
) -> None:
    """Send the files and the card as one commit, which deletes all other files of the corpus.

    The client sends no bytes that the Hub has from an interrupted upload or an earlier commit. With
    `squash`, the commits before it are deleted.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError("huggingface_hub is not installed: pip install huggingface_hub") from None

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with tempfile.TemporaryDirectory(prefix="owt-publish-") as folder:
        for upload in uploads:
            _write(corpus, upload, fraction, Path(folder))
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        try:
            api.create_repo(name, repo_type="dataset", exist_ok=True, private=not public)
            api.upload_folder(
                repo_id=name,
                folder_path=folder,
                repo_type="dataset",
                commit_message="The corpus",
                delete_patterns=["corpus/*.parquet", "urls/*.parquet"],
            )
            if squash:
                api.super_squash_history(name, repo_type="dataset")
        except Exception as error:
            package = type(error).__module__.partition(".")[0]
            # Errors of other packages are not the network's, so they are not reported as such.
            if package not in _CLIENTS and not isinstance(error, OSError):
                raise
            status = getattr(getattr(error, "response", None), "status_code", 0)
            hint = ""
            if status in (401, 403):
                hint = "; run `hf auth login` to enter a token"
            raise UserError(
                f"{HUB}{name}: {str(error).splitlines()[0]}{hint}; run the same command again to "
                "continue"
            ) from error


def _write(corpus: DatasetReader, upload: Upload, fraction: float, folder: Path) -> None:
    """Write a shard's files; raises UserError if the shard has changed since it was written."""
    source, paths = upload
    # The names in the repository are made from this digest, so the Hub would keep the damaged rows
    # under the name of the undamaged ones.
    if corpus.workdir.sha256(source.path) != source.sha256:
        raise UserError(
            f"{corpus.workdir.path(source.path)} was changed after it was written: run "
            f"{command('owt', 'verify', corpus.workdir, '--repair')}, then "
            f"{command('owt', 'run', corpus.workdir)}"
        )
    table = pa.Table.from_batches(corpus.batches_of(source, rows=1 << 14), corpus.schema(source))
    is_held_out = is_validation(table["url_id"].to_numpy(), fraction)
    for (config, split), path in paths.items():
        is_in_split = is_held_out == (split == SPLITS[1])
        rows = table.filter(pa.array(is_in_split)).select(_columns(config, table.schema))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / path, compression="zstd", row_group_size=1 << 14)


def dataset_card(
    workdir: Storage, name: str, configs: Sequence[str], *, license: str, contact: str
) -> str:
    """Return README.md of the dataset.

    It describes the sources and the steps, counts the rejects, and explains how to have a document
    removed.
    """
    root = require_run(workdir)
    datasets = root.datasets
    manifests = {name: datasets[name] for name in DATASETS if name in datasets}
    schema = DATASETS["corpus"].schema
    card_configs = []
    for config in configs:
        patterns = {split: f"{config}/{split}/*.parquet" for split in SPLITS}
        card_configs.append(Config(config, patterns))
    # A generation that is being added has no documents in the corpus yet.
    num_shards = manifests["corpus"].num_shards
    generations = [each for each in root.generations if each.shard_numbers.stop <= num_shards]
    return published_card(
        manifests,
        generations,
        name,
        card_configs,
        [schema.field(column) for column in _columns(configs[0], schema)],
        _link_sources(workdir, manifests),
        license=license,
        contact=contact,
    )


def _link_sources(workdir: Storage, manifests: Mapping[str, Manifest]) -> list[str]:
    """Return where the URLs were linked, as far as `urls/` still has its files."""
    if "urls" not in manifests:
        return []
    urls = surviving_files(workdir, manifests["urls"])
    link_sources: set[str] = set()
    for shard in range(urls.num_shards):
        for batch in urls.batches(shard, columns=["link_sources"], rows=1 << 16):
            link_sources.update(pc.unique(pc.list_flatten(batch["link_sources"])).to_pylist())
    return sorted(link_sources)


main = Command("owt publish", _flags, _publish)
