"""Remedies for buckets, packages, archives and other versions: what a message advises is done."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomllib

from owt_pipeline.commands import near_duplicates
from owt_pipeline.engine import publish
from owt_pipeline.engine.stage import StageRun
from owt_pipeline.engine.submission import options_for
from owt_pipeline.errors import UserError
from owt_pipeline.stages.export.stage import Export
from owt_pipeline.storage.folder import Storage
from tests.advice import advising_messages
from tests.conftest import REPOSITORY
from tests.owt_pipeline.conftest import BUCKETS
from tests.owt_pipeline.fetch.archive_server import AGENT, CRAWLS, CommonCrawl, commoncrawl  # noqa: F401
from tests.owt_pipeline.remedies import Words, attempt, heal, run_to_copy
from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of
from tests.owt_pipeline.test_remedies import write_dump
from tests.servers.process import free_port


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_to_copy(tmp_path_factory)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return copy_of(finished_run, tmp_path / "a run")


def python(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, where the package is installed as another program finds it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("advised", ["rename", "move"])
def test_another_module_of_the_same_name_is_renamed_or_moved(tmp_path: Path, advised: str) -> None:
    other = tmp_path / "schemas.py"
    other.write_text("")
    program = tmp_path / "program.py"
    program.write_text("import owt_pipeline\nowt_pipeline.canonical_url('http://a.example/')\n")
    first = python(tmp_path, "program.py")
    assert "rename the program's module, or move it into a package" in first.stderr
    if advised == "rename":
        other.rename(tmp_path / "my_schemas.py")
    else:
        (tmp_path / "mine").mkdir()
        other.rename(tmp_path / "mine" / "schemas.py")
    assert python(tmp_path, "program.py").returncode == 0


def test_owt_is_started_where_no_folder_has_its_packages_names(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "__init__.py").write_text("")
    first = python(tmp_path, "-m", "owt_pipeline", "ls", "--help")
    assert (first.returncode, "start it where no folder" in first.stderr) == (1, True), first
    (tmp_path / "elsewhere").mkdir()
    assert python(tmp_path / "elsewhere", "-m", "owt_pipeline", "ls", "--help").returncode == 0


def test_settings_that_name_a_second_month_take_add(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    months = [write_dump(tmp_path / f"RS {number}.ndjson", number) for number in (1, 2)]
    settings.write_text(f"[collect]\ndumps = {json.dumps([str(months[0])])}\n")
    words: Words = ["run", tmp_path / "run", settings, "--until", "collect"]
    assert attempt(words)[0] == 0
    settings.write_text(f"[collect]\ndumps = {json.dumps([str(month) for month in months])}\n")
    heal(words, "repeat the command with --add to add it as a generation")
    assert manifest_of(tmp_path / "run", "urls").counts.left == 2


def test_files_that_were_left_out_of_a_folder_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "first.jsonl").write_text('{"text": "Some text of my own."}\n')
    (folder / "second.md").write_text("Another text.\n")
    code, output = attempt(["import", tmp_path / "run", folder])
    assert code == 0
    (left_out,) = re.findall(r"name a file itself to read it: (\S+)", output)
    assert attempt(["import", tmp_path / "other", folder, folder / Path(left_out).name])[0] == 0
    assert manifest_of(tmp_path / "run", "documents").counts.left == 1
    assert manifest_of(tmp_path / "other", "documents").counts.left == 2


def test_only_the_training_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("train-00", "train-01", "test-00"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": f"The text of {name}."}) + "\n")
    _, output = attempt(["import", tmp_path / "run", folder])
    assert "name only the training files" in output
    code, output = attempt(["import", tmp_path / "other", *sorted(folder.glob("train-*"))])
    assert (code, "name only the training files" in output) == (0, False)
    assert manifest_of(tmp_path / "other", "documents").counts.left == 2


@pytest.fixture
def crawl(commoncrawl: CommonCrawl, tmp_path: Path) -> Words:  # noqa: F811
    """A page of Common Crawl, and the command that takes it from there."""
    commoncrawl.add({"http://a.example/x": 5})
    commoncrawl.publish()
    options = commoncrawl.options()
    (tmp_path / "links.txt").write_text("http://a.example/x\n")
    return [
        "run", tmp_path / "run", "--links", tmp_path / "links.txt", "--until", "fetch",
        "--sources", "commoncrawl", "--user_agent", AGENT, "--cc_index", options.cc_index,
        "--cc_delay", 0, "--workers", 1,
    ]  # fmt: skip


def test_the_crawls_that_an_index_has_are_named(
    crawl: Words,
    commoncrawl: CommonCrawl,  # noqa: F811
    tmp_path: Path,
) -> None:
    data = ["--cc_data", f"{commoncrawl.url}/data"]
    code, output = attempt([*crawl, *data, "--cc_crawls", "CC-MAIN-1999-01"])
    assert (code, "crawls that it has" in output) == (1, True), output
    assert attempt([*crawl, *data, "--cc_crawls", CRAWLS[0]])[0] == 0
    assert manifest_of(tmp_path / "run", "pages").counts.left == 1


def test_the_root_of_an_archive_is_named(
    crawl: Words,
    commoncrawl: CommonCrawl,  # noqa: F811
    tmp_path: Path,
) -> None:
    # The index alone, in a folder of another name.
    copied = tmp_path / "index"
    copied.symlink_to(crawl[crawl.index("--cc_index") + 1])
    words = [copied if word == crawl[crawl.index("--cc_index") + 1] else word for word in crawl]
    words += ["--cc_crawls", CRAWLS[0]]
    code, output = attempt(words)
    assert (code, "give the root of the WARC files as --cc_data" in output) == (1, True), output
    assert attempt([*words, "--cc_data", f"{commoncrawl.url}/data"])[0] == 0
    assert manifest_of(tmp_path / "run", "pages").counts.left == 1


@pytest.mark.slow
def test_a_run_of_another_version_is_run_with_its_settings(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_options = Export.key_options

    def with_option(stage: Export, options: Any) -> dict[str, Any]:
        return {**key_options(stage, options), "an_option_of_before": 1}

    with monkeypatch.context() as earlier:
        earlier.setattr(Export, "key_options", with_option)
        ask_owt("run", run, "--workers", 1)
    (run / "list.txt").write_text("example.org\n")
    heal(["forget", run, run / "list.txt", "--workers", 1], "another version of the stage wrote it")


def test_a_file_that_is_lost_while_its_stage_ends_is_made_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: Words = ["run", run, "--rules", "exact", "--workers", "1"]
    check = publish._check_files

    def lose_and_check(stage_run: StageRun, records: Any) -> None:
        if stage_run.stage.name == "export":
            (run / records[0].files[0].path).unlink()
        check(stage_run, records)

    with monkeypatch.context() as losing:
        losing.setattr(publish, "_check_files", lose_and_check)
        code, output = attempt(words)
    assert (code, "while the stage ran: " in output) == (1, True)
    assert attempt(words)[0] == 0
    assert "no problems found" in ask_owt("verify", run)


def test_near_duplicates_are_searched_again_once_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": "Some text of my own."}) + "\n")
    words: Words = ["near-duplicates", texts, "--unique", tmp_path / "unique.parquet"]
    write = near_duplicates.write_unique

    def change_and_write(*arguments: Any) -> None:
        with open(texts, "a") as opened:
            opened.write(json.dumps({"text": "One more text."}) + "\n")
        write(*arguments)

    with monkeypatch.context() as changing:
        changing.setattr(near_duplicates, "write_unique", change_and_write)
        code, output = attempt(words)
    assert (code, "run the command again while no program changes them" in output) == (1, True)
    assert attempt(words)[0] == 0


def test_a_file_system_without_hard_links_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "Some text of my own."}\n')
    (tmp_path / "old disk").mkdir()
    link = os.link

    def refuse(source: Any, target: Any, **flags: Any) -> None:
        if "old disk" in str(target):
            raise OSError(errno.EPERM, "Operation not permitted", target)
        link(source, target, **flags)

    monkeypatch.setattr(os, "link", refuse)
    words: Words = ["import", tmp_path / "old disk" / "run", texts, "--workers", 1]
    code, output = attempt(words)
    assert (code, "has no hard links; use a folder on another" in output) == (1, True), output
    assert attempt(["import", tmp_path / "run", texts, "--workers", 1])[0] == 0


@pytest.mark.slow
def test_a_higher_limit_of_open_files_is_enough(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "Some text of my own."}\n')

    def start(run: Path, num_files: int) -> subprocess.CompletedProcess[str]:
        limit = (num_files, num_files)
        return subprocess.run(
            [sys.executable, "-m", "owt_pipeline", "import", run, texts, "--workers", "1"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
            capture_output=True,
            text=True,
            check=False,
        )

    # The number that is just too small to start, or enough, depends on the version of Python.
    outputs = {}
    for num_files in range(4, 12):
        outputs[num_files] = start(tmp_path / f"{num_files}", num_files).stderr
        if "raise the limit (ulimit -n)" in outputs[num_files]:
            break
    else:
        pytest.fail(f"no limit is too low: {outputs}")
    assert "Traceback" not in outputs[num_files]
    assert start(tmp_path / f"{num_files}", 256).returncode == 0


EXTRAS: Mapping[str, list[str]] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())[
    "project"
]["optional-dependencies"]
_BASE: list[str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
    "dependencies"
]
_INSTALLING = re.compile(r"pip install(?: --\S+)* '?([A-Za-z][\w.-]*)(?:\[(\w+)\])?")


def test_the_packages_that_messages_install_are_those_of_the_extras() -> None:
    """What is advised has a name that a package has, and is among what the project installs."""
    advised = set()
    for message in advising_messages(REPOSITORY):
        advised.update(_INSTALLING.findall(message))
    assert len(advised) >= 5
    named = {re.split(r"[\[<>=;~ ]", line)[0] for lines in EXTRAS.values() for line in lines}
    named |= {re.split(r"[\[<>=;~ ]", line)[0] for line in _BASE}
    for package, extra in advised:
        if package == "owt-pipeline":
            assert extra in EXTRAS, extra
        elif package not in ("boto3", "torch_xla"):
            # Only the profiles of AWS need boto3, and only TPU machines torch_xla.
            assert package in named, package


_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": ("GOOGLE_BEARER_TOKEN",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}


def write_service_account(folder: Path, address: str) -> Path:
    """Write the file of a service account, of a server that does not check its signatures."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "client_email": "test@bucket.test",
        "private_key": pem.decode(),
        "private_key_id": "1",
        "gcs_base_url": address,
        "disable_oauth": True,
    }
    path = folder / "account.json"
    path.write_text(json.dumps(account))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUCKETS)
class TestBuckets:
    @pytest.fixture
    def bucket(self, kind: str) -> Iterator[str]:
        with BUCKETS[kind]() as uri:
            yield uri

    def test_credentials_that_are_named_give_access(
        self, kind: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = {name: os.environ[name] for name in _CREDENTIALS[kind]}
        address = os.environ.get("GOOGLE_BASE_URL", "")
        for name in given:
            monkeypatch.delenv(name)
        with pytest.raises(UserError, match="no credentials found: ") as error:
            Storage(f"{bucket}/run").names()
        if kind == "gs":
            path = write_service_account(tmp_path, address)
            given = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
        for name, value in given.items():
            assert name in str(error.value)
            monkeypatch.setenv(name, value)
        Storage(f"{bucket}/run").write("a", b"1")
        assert Storage(f"{bucket}/run").names() == ["a"]

    def test_a_bucket_is_named_as_advised(self, kind: str, bucket: str) -> None:
        _, output = attempt(["ls", f"{kind}:///run"])
        example = re.search(r"write (\w+://)BUCKET(/)FOLDER", output)
        assert example is not None, output
        code, output = attempt(["ls", f"{example[1]}bucket{example[2]}run"])
        assert (code, "is not a run: it has no" in output) == (3, True), output

    def test_the_name_of_a_bucket_is_corrected(self, kind: str, bucket: str) -> None:
        with pytest.raises(UserError, match="there is no such bucket: check its name, or make it"):
            Storage(f"{kind}://buckett/run").names()
        assert Storage(f"{bucket}/run").names() == []

    def test_the_address_that_is_named_is_corrected(
        self, kind: str, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = {name: value for name, value in os.environ.items() if "://127.0.0.1:" in value}
        wrong = f"http://127.0.0.1:{free_port()}"
        for name in given:
            monkeypatch.setenv(name, wrong)
        with pytest.raises(UserError, match=r"check the network and \w+$") as error:
            Storage(f"{bucket}/run").names()
        name = str(error.value).rpartition(" ")[2]
        monkeypatch.setenv(name, given[name])
        assert Storage(f"{bucket}/run").names() == []


def test_dataflow_is_given_a_bucket_and_the_package(tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.dataflow")
    flags = ("--runner=DataflowRunner", "--no_auth", "--project=p", "--region=r")
    with pytest.raises(UserError, match="give a bucket, gs://BUCKET/FOLDER"):
        options_for(flags, Storage(str(tmp_path)), [])
    bucket = Storage("gs://bucket/run")
    with pytest.raises(UserError, match="give --sdk_container_image"):
        options_for(flags, bucket, [])
    for package in ("--sdk_container_image=image", f"--extra_package={tmp_path}/a.whl"):
        options_for((*flags, package), bucket, [])
