"""Numbers and tables from known timings."""

import json

import pytest

from benchmarks.timing.machine import Machine
from benchmarks.timing.report import Report
from benchmarks.timing.results import SideResult, WorkloadResult
from benchmarks.timing.scale import CohortResult, LongRun, ScaleResult
from benchmarks.timing.workloads import logistic
from tests.benchmarks.timing.harness import TINY


def side(title, *repetitions, failure=None, peak=(100_000_000, 200_000_000)):
    return SideResult(
        title=title,
        description="sizes",
        seconds=[list(r) for r in repetitions],
        first_round=[9.0, 5.0][: len(repetitions)],
        peak_bytes=list(peak)[: len(repetitions)],
        versions={title.split()[0]: "1.0"},
        failure=failure,
    )


@pytest.fixture
def workload():
    return WorkloadResult(
        name="tiny",
        description="sizes",
        sides=[
            side("Ours", [1.0, 4.0, 2.0], [2.0, 3.0, 1.5]),
            side("Slow", [5.0, 5.0, 6.0], [4.0, 5.0, 7.0]),
            side("Bad", failure="ended with status 1: no"),
        ],
        products=side("products", [0.5, 0.5], [0.5, 0.5]),
        flops=10**11,
    )


@pytest.fixture
def report(workload):
    base = side("1,000 clients", [0.02], [0.02], peak=[300_000_000] * 2)
    large = side("10,000 clients", [0.25], [0.25], peak=[500_000_000] * 2)
    scale = ScaleResult(
        cohorts=[
            CohortResult(logistic(100), side("100 clients", failure="was ended"), None, None),
            CohortResult(logistic(1_000), base, 1.0, 0),
            CohortResult(logistic(10_000), large, 1.25, 200_000_000),
        ],
        long_run=LongRun(100, {100: 300_000_000, 200: 301_000_000, 300: 302_500_000}),
    )
    machine = Machine("A CPU", 2, 16_000_000_000, "Linux", "3.11.7")
    return Report("./run benchmark", "2026-01-01", machine, "Medians.", [workload], scale)


def test_medians_and_ratios_are_over_all_repetitions(workload):
    ours, slow, bad = workload.sides
    assert ours.median == 2.0
    assert slow.median == 5.0
    assert workload.ratio(ours) == 1.0
    assert workload.ratio(slow) == 2.5
    assert workload.ratio(bad) is None
    assert ours.summary() == {
        "median_seconds": 2.0,
        "min_seconds": 1.0,
        "max_seconds": 4.0,
        "first_round_seconds": 5.0,
        "peak_bytes": 200_000_000,
    }
    assert bad.summary() == {}


def test_matrix_products_are_compared_with_our_round(workload):
    assert workload.products_share == 0.25
    assert workload.gflops_per_second == 200.0


def test_a_row_holds_what_was_measured(report):
    rows = [[cell.strip() for cell in row.split("|")] for row in report.markdown().splitlines()]
    assert ["", "Ours", "2", "1.00", "1 - 4", "5.0", "200", ""] in rows
    assert ["", "Slow", "5", "2.50", "4 - 7", "5.0", "200", ""] in rows
    assert ["", "Bad", "failed", "-", "-", "-", "-", ""] in rows
    assert ["", "10,000 clients", "0.25", "25.0", "1.25", "500", "200", ""] in rows
    assert ["", "100 clients", "failed", "-", "-", "-", "-", ""] in rows


def test_a_page_says_where_it_comes_from(report):
    page = report.markdown()
    assert "    ./run benchmark\n" in page
    assert "2026-01-01. A CPU, 2 cores, 16 GB, CPython 3.11.7. Medians." in page
    assert "(100.0 GFLOP) take 0.5 s with TensorFlow, at 200 GFLOP/s: 25% of our round." in page
    assert "300.0 MB after 100 rounds, 302.5 MB after 300: +2.5 MB." in page
    assert "Ours 1.0" in page
    assert "- Bad, tiny: ended with status 1: no" in page


def test_json_holds_every_round(report):
    read = json.loads(json.dumps(report.to_json()))
    assert read["workloads"]["tiny"]["sides"]["Ours"]["seconds"] == [
        [1.0, 4.0, 2.0],
        [2.0, 3.0, 1.5],
    ]
    assert read["workloads"]["tiny"]["sides"]["Slow"]["ratio"] == 2.5
    assert read["workloads"]["tiny"]["matrix_products"]["share_of_our_round"] == 0.25
    assert read["scale"]["long_run"]["growth_bytes"] == 2_500_000
    assert read["scale"]["cohorts"][2]["time_per_client_over_base"] == 1.25
    assert read["failures"] == [
        "Bad, tiny: ended with status 1: no",
        "100 clients, scale: was ended",
    ]


def test_where_ours_failed_nothing_is_compared(report, workload):
    ours = side("Ours", failure="no")
    failed = WorkloadResult("tiny", "sizes", [ours, workload.sides[1]], workload.products, 10**11)
    assert failed.ratio(failed.sides[1]) is None
    assert failed.products_share is None
    assert "GFLOP" not in Report("", "", report.machine, "", [failed], None).markdown()


def test_this_machine_has_a_description():
    here = Machine.here()
    assert here.cores >= 1
    assert here.memory_bytes > 10**8
    assert "cores" in str(here)


def test_workloads_survive_the_command_line():
    assert type(TINY).from_json(TINY.to_json()) == TINY
