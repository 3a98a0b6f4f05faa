"""The table of costs follows from the measured rates, and both pages that have it agree."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPOSITORY

FIGURES = (REPOSITORY / "docs/benchmarks/figures.md").read_text(encoding="utf-8")
INDEX = (REPOSITORY / "docs/index.md").read_text(encoding="utf-8")
FACTORS = {"": 1, "M": 1e6, "million": 1e6, "B": 1e9, "GB": 1e9}
# A cell such as 0.05 for 0.052 CPU hours has one digit.
ROUNDING = 0.04


def section(title: str) -> str:
    """Return the text of a section of the figures."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", FIGURES, re.MULTILINE | re.DOTALL)
    return str(text)


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of a text's tables, without headings."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not row[0].startswith("-")]


def number(text: str) -> float:
    """Return the number that a cell begins with, times the unit that follows it."""
    match = re.match(r"\$?([\d,.]+) ?(million|GB|M|B)?", text)
    assert match, text
    return float(match[1].replace(",", "")) * FACTORS[match[2] or ""]


def prices() -> dict[str, float]:
    """Return the prices that the list below the table names, for each vCPU hour or GB."""
    items = "".join(re.findall(r"^- .*", section("What a run costs"), re.MULTILINE))
    vm, cpu, memory, disk, storage = map(float, re.findall(r"\$(\d\.\d+)", items))
    return {"vm": vm / 4, "dataflow": cpu + 4 * memory + 12.5 * disk, "storage": storage}


def all_rates() -> dict[str, tuple[float, str, str]]:
    """Return the rows of the table of rates: rate, share that leaves, bytes of a row."""
    return {
        re.sub(r"`(\w+)`", r"\1", name): (number(rate), share, size)
        for name, rate, share, size in rows_of(section("Rates"))[1:]
    }


def costs(num_urls: float) -> list[float]:
    """Compute a row of the table of costs from the table of rates."""
    rates = all_rates()
    del rates["fetch, from the web"]
    num_rows = num_urls / float(rates["collect"][1])
    cpu_seconds = 0.0
    num_bytes = 0.0
    num_result_bytes = 0.0
    for name, (rate, share, size) in rates.items():
        cpu_seconds += num_rows / rate
        if name == "report":
            break
        num_left = num_rows * float(share)
        # dedupe writes a row for each document that it removes, and export reads clean's rows.
        num_written = num_rows - num_left if name == "dedupe" else num_left
        num_bytes += num_written * number(size)
        if name in ("export", "tokenize"):
            num_result_bytes += num_written * number(size)
        if name != "dedupe":
            num_rows = num_left
    num_tokens = num_rows * number(rates["tokenize"][2]) / 2
    cpu_hours = cpu_seconds / 3600
    vcpu_hours = 2 * cpu_hours
    money = [
        vcpu_hours * prices()["vm"],
        vcpu_hours * prices()["dataflow"],
        num_bytes / 1e9 * prices()["storage"],
    ]
    return [num_rows, num_tokens, cpu_hours, num_bytes, num_result_bytes, *money]


@pytest.mark.parametrize("row", rows_of(section("What a run costs"))[1:], ids=lambda row: row[0])
def test_the_table_of_costs_follows_from_the_rates(row: list[str]) -> None:
    printed = [number(cell) for cell in row[1:]]
    # A cent is the least that the table prints.
    assert printed == pytest.approx(costs(number(row[0])), rel=ROUNDING, abs=0.006)


def test_what_binds_a_run_follows_from_the_rates() -> None:
    rates = all_rates()
    text = section("What a run costs")
    hours = re.search(r"([\d.]+) million URLs take about (\d+) hours", text)
    assert hours
    seconds = 1e6 * float(hours[1]) / rates["fetch, from the web"][0]
    assert float(hours[2]) == pytest.approx(seconds / 3600, rel=0.01)
    num_pages = 1e6 * float(rates["fetch, from WARC files"][1])
    num_texts = num_pages * float(rates["extract"][1])
    shares = re.search(r"`extract` takes (\d+)% of them, `clean` (\d+)%", text)
    assert shares
    for share, rows, stage in zip(
        shares.groups(), (num_pages, num_texts), ("extract", "clean"), strict=True
    ):
        cpu_hours = rows / rates[stage][0] / 3600
        assert float(share) == pytest.approx(100 * cpu_hours / costs(1e6)[2], abs=0.6)


def test_the_first_page_has_the_same_costs() -> None:
    columns = [0, 1, 2, 3, 4, 6, 7]
    expected = [[row[column] for column in columns] for row in rows_of(section("What a run costs"))]
    assert [row for row in rows_of(INDEX) if row in expected] == expected
