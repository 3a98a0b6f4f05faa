"""A kind of source: it finds its files, reads them, and checks that they are complete."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats import lines
from owt_pipeline.formats.batches import MAX_BATCH_BYTES
from owt_pipeline.formats.captures import COMPLETE
from owt_pipeline.formats.dates import UnreadDates
from owt_pipeline.formats.files import AcceptedFiles
from owt_pipeline.stages.collect.submissions import SUBMISSIONS, submissions
from owt_pipeline.storage.folder import describe_source
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.collect.options import Options

_MAX_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Source:
    """One file, or one subreddit.

    Attributes:
      number: its place among all sources.
      kind: the name of its kind.
      uri: path or URI; name of the subreddit.
      name: its name in the ledger. It is the file's name without its folder, or `r/SUBREDDIT`. A
        table of links is named with the folders below the one that all tables have in common.
      num_bytes: its size; 0 if it is not a file.
    """

    number: int
    kind: str
    uri: str
    name: str
    num_bytes: int = 0


class SourceKind(abc.ABC):
    """A kind of source. Instances have no state, so each process can use its own.

    Attributes:
      name: the kind's name in the ledger.
      option: the option that names sources of this kind. Several kinds may share one: a file is of
        the first of them that matches it.
      accepted: the files that `option` takes. Only one kind of an option has them; a kind that a
        package adds takes the files that it matches.
      bytes_per_shard: about how many bytes of such a source become 20,000 URLs, which is a shard.
      link_source: where links of such a source were found, unless it names a place itself.
      bad_reasons: the reasons of rows that such a source must not have.
      expected: the content of each line, for messages.
      has_lines: whether a place in it is a line.
      is_stored: whether `store` reads it once, when a run begins, into the run's folder.
    """

    name: ClassVar[str]
    option: ClassVar[str]
    accepted: ClassVar[AcceptedFiles | None] = None
    bytes_per_shard: ClassVar[int]
    link_source: ClassVar[str]
    bad_reasons: ClassVar[tuple[Reason, ...]] = (Reason.BAD_LINE,)
    expected: ClassVar[str] = "a submission as a JSON object"
    has_lines: ClassVar[bool] = True
    is_stored: ClassVar[bool] = False

    def matches(self, name: str, start: bytes) -> bool:
        """Return whether a file is of this kind, by its name and its first bytes, decompressed.

        Only kinds that packages add define it: their option has files of other kinds, too.
        """
        return False

    def names_of(
        self, uris: Sequence[str], recorded_by_uri: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the name in the ledger of each source of this kind, by path or URI.

        `recorded_by_uri` has the recorded sources of this kind.
        """
        return {uri: uri.rpartition("/")[2] for uri in uris}

    def describe(self, uri: str, name: str, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the fields of the ledger that identify a source and its content.

        `recorded` are the fields of an earlier generation; None for a new source.
        """
        return {**describe_source(uri, recorded), "uri": uri}

    @abc.abstractmethod
    def read(
        self, source: Source, uri: str, tally: Tally, allow_damaged: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of schema SUBMISSIONS or BLOCKS, and tally how the file ends.

        Raises UserError for a file that cannot be read at all, or that is damaged, unless
        `allow_damaged`.
        """

    def store(self, uri: str, options: Options) -> bytes:
        """Return the content of a source for the run's folder.

        A kind that `is_stored` defines it; it is not called for others.
        """
        raise NotImplementedError(f"{type(self).__name__} is stored and does not define store()")

    def find_end(self, tally: Tally) -> str | None:
        """Return why a source that was read to its end is incomplete; None if it is complete."""
        return None

    def find_problem(self, tally: Tally) -> str | None:
        """Return another problem of a source, by its tally; None without one."""
        return None


@dataclass
class Tally:
    """Counts of one source.

    A line is a line that is not blank, a row of a table, or an HTML response of a WARC file.

    Attributes:
      kind: kind of the source.
      lines: number of lines.
      without_url: number of lines without a URL.
      first_without_url: the first note of a line without a URL, which names its fields.
      malformed: number of lines that a source of its kind must not have.
      first_malformed: place and problem of the first of them.
      last_malformed: number of the last of them.
      broken: where and why the source ends early; None if it does not.
      remedy: what to do about a source that ends early.
      ends_within_line: whether the last line has no end.
      overlong: number of the first line that is too long to be a record; 0 if there is none.
      last_line: number of the last line that was read.
      times: counts of the times in a table of links.
      bytes_read: how much of the file has been read, as far as its kind counts it.
    """

    kind: SourceKind
    lines: int = 0
    without_url: int = 0
    first_without_url: str = ""
    malformed: int = 0
    first_malformed: str = ""
    last_malformed: int = 0
    broken: str | None = None
    remedy: str = COMPLETE
    ends_within_line: bool = False
    overlong: int = 0
    last_line: int = 0
    times: UnreadDates = field(default_factory=UnreadDates)
    bytes_read: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows of schema ROWS."""
        self.lines += rows.num_rows
        self.last_line = max(self.last_line, pc.max(rows["line"]).as_py() or 0)
        self._add_lines_without_url(rows)
        self._add_malformed_lines(rows)

    def _add_lines_without_url(self, rows: pa.RecordBatch) -> None:
        lines_without_url = rows.filter(pc.equal(rows["reason"], str(Reason.NO_URL)))
        self.without_url += lines_without_url.num_rows
        if not self.first_without_url:
            notes = lines_without_url["note"].to_pylist()
            self.first_without_url = next(filter(None, notes), "")

    def _add_malformed_lines(self, rows: pa.RecordBatch) -> None:
        bad_reasons = pa.array([str(reason) for reason in self.kind.bad_reasons])
        malformed = rows.filter(pc.is_in(rows["reason"], bad_reasons))
        if not malformed.num_rows:
            return
        self.malformed += malformed.num_rows
        numbers = malformed["line"]
        if not self.first_malformed:
            first_note = malformed["note"][0].as_py()
            self.first_malformed = f"line {numbers[0].as_py()}: {first_note}"
        self.last_malformed = max(self.last_malformed, numbers[-1].as_py())

    def finish(self) -> None:
        """Find how the source ends, after all of its rows are counted."""
        if self.broken is None:
            self.broken = self.kind.find_end(self)

    @property
    def is_another_kind(self) -> bool:
        """Whether most lines are malformed, so that the file is something else."""
        return 2 * self.malformed > self.lines

    @property
    def problem(self) -> str | None:
        """Return why the source must not be used as it is, and what to do; None if it may be."""
        if self.broken is not None:
            place = f"after line {self.last_line:,}: " if self.kind.has_lines else ""
            return f"{place}{self.broken}; {self.remedy}"
        if self.overlong:
            return (
                f"line {self.overlong:,} has over {lines.MAX_LINE_BYTES:,} bytes; "
                "expected a record on each line: check what the file is"
            )
        if self.is_another_kind:
            return (
                f"{self.malformed:,} of {self.lines:,} lines are malformed, the first is "
                f"{self.first_malformed}; "
                f"expected {self.kind.expected} on each line: check what the file is"
            )
        return self.kind.find_problem(self)


def in_batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield rows, by columns of SUBMISSIONS, in batches of that schema.

    A batch is bounded in rows and in characters, since a title may be a text.
    """
    batch: list[Mapping[str, Any]] = []
    num_chars = 0
    for row in rows:
        batch.append(row)
        num_chars += sum(map(_num_chars, row.values()))
        if len(batch) == _MAX_BATCH_ROWS or num_chars >= MAX_BATCH_BYTES:
            yield _batch_of(batch)
            batch = []
            num_chars = 0
    if batch:
        yield _batch_of(batch)


def _batch_of(rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
    return submissions({name: [row.get(name) for row in rows] for name in SUBMISSIONS.names})


def _num_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(len, value))
    return 0


def problem_row(line: int, reason: Reason, note: str) -> pa.RecordBatch:
    """Return a row of schema SUBMISSIONS for a line that is not in a block.

    It also stands for the lines that are lost at the end of a source.
    """
    return submissions({"line": [line], "reason": [str(reason)], "note": [note]})
