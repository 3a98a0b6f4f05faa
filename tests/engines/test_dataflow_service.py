"""The Dataflow service of these tests executes what it is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.cloud import Cloud

pytestmark = pytest.mark.engines

PROGRAM = """\
import json, os, sys
import apache_beam as beam
from apache_beam.metrics import Metrics

def work(x, refused):
    import owt_pipeline
    Metrics.counter("job", "seen").inc()
    Metrics.distribution("job", "values").update(x)
    if x == refused:
        raise ValueError("seven is refused")
    return x % 2, (owt_pipeline.__file__, sys.path)

def write(element, folder):
    key, values = element
    with open(os.path.join(folder, f"group-{key}.json"), "w") as file:
        json.dump([list(value) for value in values], file)

folder, refused, *flags = sys.argv[1:]
pipeline = beam.Pipeline(argv=flags)
values = pipeline | beam.Create(range(20)) | beam.Reshuffle()
_ = values | beam.Map(work, int(refused)) | beam.GroupByKey() | beam.Map(write, folder)
result = pipeline.run()
print(result.wait_until_finish())
found = result.metrics().query()
print([metric.committed for metric in found["counters"]], found["distributions"][0].committed.sum)
"""


def submit(service: Cloud, folder: Path, name: str, refused: int) -> tuple[int, str]:
    program = folder / "job.py"
    program.write_text(PROGRAM)
    flags = [*service.flags(name), f"--extra_package={service.wheel}", "--no_save_main_session"]
    done = service.run("python", program, folder, refused, *flags, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def test_a_job_runs_on_workers_that_have_the_staged_wheel_and_nothing_of_the_checkout(
    service: Cloud, tmp_path: Path
) -> None:
    code, printed = submit(service, tmp_path, "small", -1)
    assert code == 0, printed
    assert "DONE" in printed
    assert "[20] 190" in printed
    (done,) = (job for job in service.jobs() if job["name"] == "small")
    workers = service.get(f"/{done['id']}/seen")["folder"]
    groups = [json.loads((tmp_path / f"group-{key}.json").read_bytes()) for key in (0, 1)]
    assert [len(group) for group in groups] == [10, 10]
    for module, path in groups[0]:
        assert module.startswith(f"{workers}/environment/")
        assert not [entry for entry in path if Path(entry, "tests").is_dir() and Path(entry, "benchmarks").is_dir()]


def test_a_job_whose_code_fails_has_failed(service: Cloud, tmp_path: Path) -> None:
    code, printed = submit(service, tmp_path, "fails", 7)
    assert code != 0
    assert "ValueError: seven is refused" in printed
    assert not list(tmp_path.glob("group-*"))
