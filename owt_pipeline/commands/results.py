"""What `owt run` prints at its end: the funnel, where the outputs are, and the next command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from owt_pipeline.command_line import aligned
from owt_pipeline.engine.runner import Result
from owt_pipeline.errors import command
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.quantities import pluralize

# Columns of a terminal that nobody has widened.
_TABLE_WIDTH = 80


def funnel_table(results: Sequence[Result]) -> str:
    """Return the funnel of a run as text: what entered and left each stage, and the rejects.

    Reasons that do not fit into 80 columns are left out; the log and the report have all.
    """
    rows = [("stage", "in", "out", "seconds")]
    for result in results:
        counts = result.manifest.counts
        seconds = "finished" if result.seconds is None else f"{result.seconds:.1f}"
        rows.append((result.stage.name, f"{counts.entered:,}", f"{counts.left:,}", seconds))
    head, *lines = aligned(rows)
    table = [f"{head}  rejected"]
    for line, result in zip(lines, results, strict=True):
        reasons = reasons_text(result.manifest.counts.rejected)
        full_line = f"{line}  {reasons}".rstrip()
        shorter_line, comma, _ = full_line[: _TABLE_WIDTH - 3].rpartition(", ")
        is_too_long = len(full_line) > _TABLE_WIDTH and comma
        table.append(f"{shorter_line}, ..." if is_too_long else full_line)
    return "\n".join(table)


def outputs_text(results: Sequence[Result], workdir: Storage) -> str:
    """Return the last lines of `owt run`: where the outputs are, and what to do next."""
    lines = [""]
    finished = {result.stage.name: result.manifest for result in results}
    if corpus := finished.get("export"):
        documents = pluralize(corpus.counts.left, "document")
        lines.append(f"corpus  {workdir.path('corpus')}  {documents}, Parquet")
    if tokens := finished.get("tokenize"):
        total = sum(tokens.stats.get(f"tokens_{split}", 0) for split in ("train", "val"))
        num_tokens = pluralize(total, "token")
        lines.append(f"tokens  {workdir.path('tokens')}  {num_tokens}, Arrow IPC")
    if "report" in finished:
        lines.append(f"report  {workdir.path('report/index.html')}")
    # No next command is of use without documents.
    if not all(result.manifest.counts.left for result in stages_of_documents(results)):
        return "\n".join(lines)
    if "tokenize" in finished:
        words = ["python", "-m", "trainer", "--data", workdir.path("tokens")]
        words += ["--out", "gpt2", "--preset", "124M"]
    else:
        names = list(STAGES)
        next_stage = names[names.index(results[-1].stage.name) + 1]
        words = ["owt", "run", str(workdir), "--until", next_stage]
    lines.append(f"next:   {command(*words).strip('`')}")
    has_imported_text = "extract" not in finished
    if "tokenize" in finished and has_imported_text:
        words = ["python", "-m", "trainer.data.export_tokens", workdir.path("tokens"), "out"]
        lines.append(f"or:     {command(*words).strip('`')}  (for other trainers)")
    return "\n".join(lines)


def stages_of_documents(results: Sequence[Result]) -> list[Result]:
    """Return the results without `dedupe` and `report`, whose rows do not become documents."""
    return [result for result in results if result.stage.name not in ("dedupe", "report")]


def reasons_text(rejected: Mapping[str, int]) -> str:
    """Return the reasons of rejects and the number of each, the most frequent first."""
    return ", ".join(f"{reason} {count:,}" for reason, count in Counter(rejected).most_common())
