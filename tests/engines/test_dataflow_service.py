"""The Dataflow service of these tests does what is expected of one: it executes, tries again, refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.cloud import Cloud

pytestmark = pytest.mark.engines

PROGRAM = """\
import json, os, sys, time
import apache_beam as beam
from apache_beam.metrics import Metrics

def work(x, folder, always):
    import owt_pipeline
    Metrics.counter("job", "seen").inc()
    Metrics.distribution("job", "values").update(x)
    tries = os.path.join(folder, f"{x}-{time.time_ns()}")
    open(tries, "w").close()
    number = sum(name.startswith(f"{x}-") for name in os.listdir(folder))
    if x == 7 and (always or number <= 2):
        raise ValueError("seven is refused")
    if x == 11 and number == 1 and not always:
        os.kill(os.getpid(), 9)
    return x % 2, (owt_pipeline.__file__, sys.path)

def write(element, folder):
    key, values = element
    with open(os.path.join(folder, f"group-{key}.json"), "w") as file:
        json.dump([list(value) for value in values], file)

folder, always, *flags = sys.argv[1:]
pipeline = beam.Pipeline(argv=flags)
values = pipeline | beam.Create(range(20)) | beam.Reshuffle()
_ = values | beam.Map(work, folder, always == "always") | beam.GroupByKey() | beam.Map(write, folder)
result = pipeline.run()
print(result.wait_until_finish())
found = result.metrics().query()
print([metric.committed for metric in found["counters"]], found["distributions"][0].committed.sum)
"""


def submit(service: Cloud, folder: Path, name: str, always: str = "") -> tuple[int, str]:
    (folder / "seen").mkdir()
    program = folder / "job.py"
    program.write_text(PROGRAM)
    flags = [*service.flags(name), f"--extra_package={service.wheel}", "--no_save_main_session"]
    done = service.run("python", program, folder / "seen", always, *flags, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def job(service: Cloud, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("job")
    code, printed = submit(service, folder, "small")
    assert code == 0, printed
    return printed, folder / "seen"


def test_a_bundle_that_fails_or_loses_its_worker_is_tried_again_and_counts_once(
    service: Cloud, job: tuple[str, Path]
) -> None:
    printed, folder = job
    assert "DONE" in printed
    assert "[20] 190" in printed
    (done,) = (job for job in service.jobs() if job["name"] == "small")
    attempts = service.get(f"/{done['id']}/seen")["attempts"]
    assert sum("seven is refused" in tried["message"] for tried in attempts) == 2
    assert len(attempts) == 3
    assert len(list(folder.glob("7-*"))) >= 3
    groups = [json.loads((folder / f"group-{key}.json").read_bytes()) for key in (0, 1)]
    assert [len(group) for group in groups] == [10, 10]


def test_workers_have_the_staged_wheel_and_nothing_of_the_checkout(service: Cloud, job: tuple[str, Path]) -> None:
    _, folder = job
    (done,) = (job for job in service.jobs() if job["name"] == "small")
    workers = service.get(f"/{done['id']}/seen")["folder"]
    for module, path in json.loads((folder / "group-0.json").read_bytes()):
        assert module.startswith(f"{workers}/environment/")
        assert not [entry for entry in path if Path(entry, "tests").is_dir() and Path(entry, "benchmarks").is_dir()]


def test_a_bundle_that_always_fails_is_tried_four_times_and_fails_the_job(service: Cloud, tmp_path: Path) -> None:
    code, printed = submit(service, tmp_path, "always-fails", "always")
    assert code != 0
    assert "ValueError: seven is refused" in printed
    (failed,) = (job for job in service.jobs() if job["name"] == "always-fails")
    attempts = service.get(f"/{failed['id']}/seen")["attempts"]
    assert [tried["attempt"] for tried in attempts if "seven" in tried["message"]] == [1, 2, 3, 4]
    assert not list((tmp_path / "seen").glob("group-*"))


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(description: dict[str, Any]) -> None:
        *way, last = path.split(".")
        inside: Any = description
        for name in way:
            inside = inside[int(name) if name.isdigit() else name]
        inside[last] = value

    return apply


POOL = "environment.workerPools.0"


@pytest.mark.parametrize(
    ("broken", "code", "said"),
    [
        (change("name", "My_Job"), 400, "does not match the regular expression"),
        (change("nmae", "small"), 400, 'no field named "nmae"'),
        (change(f"{POOL}.machineSort", "n1"), 400, 'no field named "machineSort"'),
        (change(f"{POOL}.machineType", "n1-gigantic-4"), 400, "n1-gigantic-4 is not available"),
        (change(f"{POOL}.zone", "europe-west1-b"), 400, "is not in the region"),
        (change(f"{POOL}.diskSizeGb", 5), 400, "not between 25 GB"),
        (change(f"{POOL}.packages.0.location", "storage.googleapis.com/bucket/none"), 400, "cannot be read"),
        (change("environment.tempStoragePrefix", "storage.googleapis.com/other/tmp"), 400, "does not exist"),
        (change("environment.tempStoragePrefix", "/tmp/here"), 400, "is not in a bucket"),
        (
            change("environment.sdkPipelineOptions.options.pipelineProtoHash", "0"),
            400,
            "not the one that was submitted",
        ),
        (change("labels", {"Owner": "me"}), 400, "label Owner=me is not valid"),
        (change("labels", {"long": "x" * 11_000_000}), 413, "payload size exceeds"),
    ],
)
def test_refuses_what_the_service_refuses(
    service: Cloud, job: tuple[str, Path], broken: Callable[[dict[str, Any]], None], code: int, said: str
) -> None:
    description = copy.deepcopy(service.get(f"/{service.jobs()[0]['id']}/seen")["description"])
    broken(description)
    error = service.post(json.dumps(description).encode())["error"]
    assert (error["code"], said in error["message"]) == (code, True), error


def test_refuses_a_region_that_does_not_exist(service: Cloud, job: tuple[str, Path]) -> None:
    description = service.get(f"/{service.jobs()[0]['id']}/seen")["description"]
    assert "unknown region" in service.post(json.dumps(description).encode(), "middle-earth1")["error"]["message"]
