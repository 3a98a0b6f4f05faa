"""The forecast of a run on a cluster: never better than its work allows, dearer and faster with more workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.commands.estimate import REQUEST_SECONDS, Forecast, Work, forecast, table
from owt_pipeline.engine.submission import Machines, Prices
from owt_pipeline.errors import UsageError
from tests.owt_pipeline.runs import ask_owt

FREE = Prices(*(0.0 for _ in range(7)))
works = st.builds(
    Work,
    stage=st.just("clean"),
    parts=st.integers(1, 3000),
    core_seconds=st.floats(1, 1e6),
    steps=st.integers(1, 6),
    alone=st.floats(0, 100),
    longest=st.floats(0, 1000),
)


def complete(works: list[Work], workers: int, kind: str = "n2-standard-4", prices: Prices = FREE) -> Forecast:
    return forecast(works, Machines(workers, kind), prices)[-1]


@given(works, st.integers(1, 300))
def test_no_faster_than_the_work_its_longest_part_and_what_one_does_alone(work: Work, workers: int) -> None:
    (stage, total) = forecast([work], Machines(workers, "n2-standard-4"), FREE)
    assert stage.seconds >= work.core_seconds / (4 * workers) * 0.999
    assert stage.seconds >= work.longest * 0.999
    assert stage.seconds >= stage.alone >= work.alone
    assert total.seconds == pytest.approx(stage.seconds + Machines.start_seconds)
    assert 0 < stage.busy <= 1


@given(works, st.integers(1, 100))
def test_twice_the_workers_are_never_slower_and_never_more_than_twice_as_fast(work: Work, workers: int) -> None:
    one, two = forecast([work], Machines(workers), FREE)[0], forecast([work], Machines(2 * workers), FREE)[0]
    assert one.seconds / 2 * 0.98 <= two.seconds <= one.seconds * 1.02


@given(works)
def test_one_worker_of_one_core_takes_the_sum(work: Work) -> None:
    stage = forecast([replace(work, longest=0)], Machines(1, "n1-standard-1"), FREE)[0]
    waits = work.parts * work.steps * (work.reads + work.writes) * REQUEST_SECONDS
    assert stage.seconds == pytest.approx(work.core_seconds + waits + stage.alone, rel=1e-6)


@given(works, st.integers(1, 300))
def test_dollars_are_what_is_used_at_the_prices_given(work: Work, workers: int) -> None:
    prices = Prices(vcpu_hour=2, memory_gb_hour=0, disk_gb_hour=0, shuffle_gb=0, thousand_writes=0, thousand_reads=0)
    total = complete([work], workers, prices=prices)
    assert total.dollars == pytest.approx(total.seconds / 3600 * workers * 4 * 2)
    of_requests = complete([work], workers, prices=replace(FREE, thousand_writes=3.0, thousand_reads=5.0))
    assert of_requests.dollars == pytest.approx((3 * of_requests.writes + 5 * of_requests.reads) / 1000)


@pytest.mark.parametrize(
    ("kind", "vcpus", "memory"),
    [
        ("n1-standard-1", 1, 3.75),
        ("n1-highmem-8", 8, 52),
        ("n2-standard-16", 16, 64),
        ("e2-highcpu-4", 4, 4),
        ("custom-2-8192", 2, 8),
        ("n2-custom-6-12288", 6, 12),
    ],
)
def test_a_machines_type_says_its_cores_and_memory(kind: str, vcpus: int, memory: float) -> None:
    assert (Machines(1, kind).vcpus, Machines(1, kind).memory_gb) == (vcpus, pytest.approx(memory))


def test_an_unknown_machine_or_price_is_one_line() -> None:
    with pytest.raises(UsageError, match="how many cores"):
        _ = Machines(1, "e2-medium").vcpus
    with pytest.raises(UsageError, match="did you mean 'vcpu_hour'"):
        Prices.from_flags(["vcpu_hours=1"])
    with pytest.raises(UsageError, match="'cheap' is not a number"):
        Prices.from_flags(["vcpu_hour=cheap"])
    assert Prices.from_flags(["vcpu_hour=1"]) == replace(Prices(), vcpu_hour=1)


def test_the_table_names_the_longest_thing_that_one_does_alone() -> None:
    found = forecast([Work("clean", 10, 100.0), Work("dedupe", 10, 100.0, alone=30)], Machines(5), Prices())
    assert table(found, Machines(5)).splitlines()[-1].endswith("in dedupe")


def test_a_dry_run_on_dataflow_says_what_it_takes_there(small_config: Path, tmp_path: Path) -> None:
    flags = ["--workdir", tmp_path / "run", "--dry_run", "--runner", "DataflowRunner", "--num_workers=10"]
    said = ask_owt("run", small_config, *flags)
    assert "10 workers of n1-standard-1: the longest work of one alone takes" in said
    dear = ask_owt("run", small_config, *flags, "--prices", "vcpu_hour=560")
    total = {text: float(text.rsplit("in all ", 1)[1].split()[5].replace(",", "")) for text in (said, dear)}
    assert total[dear] > 1000 * total[said]
    assert not (tmp_path / "run").exists()
