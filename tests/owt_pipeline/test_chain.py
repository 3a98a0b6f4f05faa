"""Three months, each built on the one before: what the ledger says across them, and what a takedown does to them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from owt_pipeline.cli import main
from tests.owt_pipeline.runs import manifest_of, snapshot

MONTHS = ("2024-01", "2024-02", "2024-03")


def rows(run: Path, dataset: str) -> list[dict]:
    return [row for path in sorted((run / dataset).glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def owt(*arguments: object, code: int = 0) -> None:
    assert main(list(map(str, arguments))) == code


def lines_of(small_config: Path) -> list[bytes]:
    packed = (small_config.parent / "RS_demo.zst").read_bytes()
    dump = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(packed).read()
    return dump.splitlines(keepends=True)


def run_months(small_config: Path, folder: Path, months: Sequence[Sequence[bytes]]) -> Path:
    """One run per month, up to the tokens, each built on the previous one."""
    (folder / "dumps").mkdir()
    before: list[object] = []
    for name, lines in zip(MONTHS, months, strict=False):
        (folder / f"dumps/RS_{name}.zst").write_bytes(zstandard.compress(b"".join(lines)))
        run_month(small_config, folder, name, *before)
        before = ["--base", folder / name]
    return folder


def run_month(small_config: Path, folder: Path, name: str, *flags: object, code: int = 0) -> None:
    dump = folder / f"dumps/RS_{name}.zst"
    owt("run", small_config, "--workdir", folder / name, "--dumps", dump, "--until", "tokenize", "--workers", 1,
        "--quiet", *flags, code=code)  # fmt: skip


@pytest.fixture(scope="module")
def runs(small_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's dump, dealt out to three months; some submissions are in two of them."""
    chosen, months = random.Random(3), ([], [], [])
    for line in lines_of(small_config):
        for number in chosen.sample(range(3), chosen.choice([1, 1, 2])):
            months[number].append(line)
    return run_months(small_config, tmp_path_factory.mktemp("chain"), months)


def test_nothing_is_collected_or_fetched_twice(runs: Path) -> None:
    months = [{row["url_id"] for row in rows(runs / name, "urls")} for name in MONTHS]
    assert all(months)
    assert len(set.union(*months)) == sum(map(len, months))
    assert manifest_of(runs / "2024-03", "urls").counts.rejected["seen_before"] > 5
    bases = [pinned["uri"] for pinned in json.loads((runs / "2024-03/bases.json").read_text())["bases"]]
    assert bases == ["../2024-02"]


def test_verify_checks_the_bases(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owt("verify", "--workdir", runs / "2024-03", "--quiet")
    said = capsys.readouterr().out
    assert "2024-01: " in said
    assert "no problems found" in said
    owt("ls", runs / "2024-03")
    assert f"builds on {runs / '2024-01'}, {runs / '2024-02'}" in capsys.readouterr().out
    copy = Path(shutil.copytree(runs, tmp_path / "copy"))
    (copy / "2024-01/ledger/clean/manifest.json").unlink()
    owt("verify", "--workdir", copy / "2024-03", "--quiet", code=1)
    assert "2024-01 is not finished: it has no clean/" in capsys.readouterr().out


def test_why_follows_a_url_into_the_run_that_had_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rejects = rows(runs / "2024-03", "ledger/urls/rejects")
    seen = next(r for r in rejects if r["reason"] == "seen_before" and r["detail"].startswith("2024-01: kept"))
    owt("why", seen["url"], "--workdir", runs / "2024-03")
    said = capsys.readouterr().out
    assert "rejected by collect: seen_before" in said
    assert f"in {runs / '2024-01'}, which this run builds on:" in said
    assert "kept; its tokens are in tokens/" in said.split("which this run builds on:")[-1]
    known = {row["url_id"] for row in rejects}
    only = next(row for row in rows(runs / "2024-01", "urls") if row["url_id"] not in known)
    owt("why", only["url"], "--workdir", runs / "2024-03", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], [was["run"] for was in found["earlier"]]) == ("earlier", [str(runs / "2024-01")])


def test_a_takedown_in_a_base_reaches_its_dependents_by_export_and_tokenize_alone(
    runs: Path, small_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(runs, tmp_path / "copy"))
    gone = rows(copy / "2024-01", "corpus")[0]["url"]
    host = rows(copy / "2024-03", "corpus")[0]["url"].split("/")[2]
    request = tmp_path / "takedown.txt"
    request.write_text(f"{gone}\n{host}\n")
    owt("forget", request, "--workdir", copy / "2024-01", "--workers", 1, "--reason", "notice 7")
    said = capsys.readouterr().out
    dependents = "".join(f"\n  {copy / name}" for name in MONTHS[1:])
    assert "2 runs build on this one: run `owt run` again for each, in this order" in said
    assert f"it runs export and tokenize again{dependents}\n" in said
    (line,) = map(json.loads, (copy / "2024-01/revisions.jsonl").read_text().splitlines())
    assert line["why"] == "owt forget: notice 7"
    assert {name for name in line["from"] if line["from"][name] != line["to"][name]} >= {"corpus", "forgotten.jsonl"}
    copied = [{"uri": f"../{name}"} for name in MONTHS[1:]]
    assert [json.loads(text) for text in (copy / "2024-01/dependents.jsonl").read_text().splitlines()] == copied[:1]

    run_month(small_config, copy, "2024-03", code=1)
    assert "2024-01, a base of" in capsys.readouterr().err
    before = {name: manifest_of(copy / "2024-02", name) for name in ("urls", "pages", "clean", "duplicates")}
    for name in MONTHS[1:]:
        run_month(small_config, copy, name)
        log = map(json.loads, (copy / name / "run-log.jsonl").read_text().splitlines())
        ran = [entry["stage"] for entry in log if "stage" in entry]
        assert [stage for stage in ran if stage not in ("collect", "fetch", "extract", "clean", "dedupe")] == [
            "export", "tokenize", "export", "tokenize"
        ]  # fmt: skip
        assert ran.count("collect") == ran.count("dedupe") == 1
        owt("verify", "--workdir", copy / name, "--quiet")
        assert not [row for row in rows(copy / name, "corpus") if row["url"].split("/")[2] == host]
    assert before == {name: manifest_of(copy / "2024-02", name) for name in before}
    assert manifest_of(copy / "2024-03", "corpus").counts.rejected["forgotten"] > 0


def test_a_base_is_made_anew_only_where_that_is_asked_for(
    small_config: Path, runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = Path(shutil.copytree(runs, tmp_path / "chain"))
    before = snapshot(chain / MONTHS[0] / "clean")
    run_month(small_config, chain, MONTHS[0], "--min_tokens", 80, code=1)
    error = capfd.readouterr().err
    assert f"{chain / MONTHS[1]}, {chain / MONTHS[2]} build on {chain / MONTHS[0]}" in error
    assert "[clean] min_tokens = " in error
    assert "--replace_base" in error
    assert snapshot(chain / MONTHS[0] / "clean") == before
    run_month(small_config, chain, MONTHS[0])  # as it was made: nothing to do
    run_month(small_config, chain, MONTHS[0], "--min_tokens", 80, "--replace_base")
    assert manifest_of(chain / MONTHS[0], "clean").options["min_tokens"] == 80


def test_a_renamed_base_is_accepted_by_its_new_name_and_nothing_runs_again(
    small_config: Path, runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = Path(shutil.copytree(runs, tmp_path / "chain"))
    before = manifest_of(chain / MONTHS[1], "urls").fingerprint
    (chain / MONTHS[0]).rename(chain / "january")
    run_month(small_config, chain, MONTHS[1], code=3)
    assert "where the base was moved, give --base with its new place" in capfd.readouterr().err
    run_month(small_config, chain, MONTHS[1], "--base", chain / "january")
    assert manifest_of(chain / MONTHS[1], "urls").fingerprint == before
    capfd.readouterr()
    owt("ls", chain / MONTHS[2], "--chain")
    out = capfd.readouterr().out.splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in out[-3:]] == ["january", *MONTHS[1:]]
    assert all(line.endswith("finished") for line in out[-3:]), out
    for folder in ("corpus", "ledger/corpus"):
        shutil.rmtree(chain / MONTHS[2] / folder)
    owt("ls", chain / MONTHS[2], "--chain")
    assert capfd.readouterr().out.endswith("no corpus/ yet\n")


def test_a_chain_is_brought_up_to_date_by_one_command(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = Path(shutil.copytree(runs, tmp_path / "chain"))
    gone = tmp_path / "gone.txt"
    gone.write_text(f"{rows(chain / MONTHS[0], 'corpus')[0]['url_id']}\n")
    owt("forget", gone, "--workdir", chain / MONTHS[0], "--reason", "asked")
    owt("ls", chain / MONTHS[2], "--chain")
    assert "was revised" in capfd.readouterr().out
    owt("run", "--chain", "--workdir", chain / MONTHS[2], "--workers", 1, "--quiet")
    capfd.readouterr()
    owt("ls", chain / MONTHS[2], "--chain")
    out = capfd.readouterr().out.splitlines()
    assert all(line.endswith("finished") for line in out[-3:]), out
    owt("verify", "--workdir", chain / MONTHS[2])


def test_a_month_added_twice_says_so_and_suggests_no_training(
    small_config: Path, runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dump = runs / f"dumps/RS_{MONTHS[0]}.zst"
    owt("run", small_config, "--workdir", tmp_path / "again", "--base", runs / MONTHS[0], "--dumps", dump, "--until",
        "tokenize", "--workers", 1, "--num_shards", 2)  # fmt: skip
    out = capfd.readouterr().out
    assert "nothing is new" in out
    assert "trainer.train" not in out
