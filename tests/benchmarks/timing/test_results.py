"""Results of timings: medians, ratios, sizes of workloads, and the page's section."""

import pytest

from benchmarks.timing.machine import Machine
from benchmarks.timing.own_side import MODELS
from benchmarks.timing.page import BEGIN, END, Page
from benchmarks.timing.products import round_products, total_flops
from benchmarks.timing.report import Report
from benchmarks.timing.results import SideResult, WorkloadResult
from benchmarks.timing.workloads import WORKLOADS
from tff_agnostic.base.errors import UserError


def _side(title: str, *repetitions: list[float], failure: str | None = None) -> SideResult:
    seconds = list(repetitions)
    return SideResult(title, "sizes", seconds, [9.0, 5.0], [10**8, 2 * 10**8], failure=failure)


def test_medians_and_ratios_cover_all_repetitions():
    ours, slow = _side("Ours", [1.0, 4.0, 2.0], [2.0, 3.0, 1.5]), _side("Slow", [5.0], [7.0])
    bad, products = _side("Bad", failure="no"), _side("products", [0.5], [0.5])
    workload = WorkloadResult("tiny", "sizes", [ours, slow, bad], products, 10**11)
    assert (ours.median, workload.ratio(slow), workload.ratio(bad)) == (2.0, 3.0, None)
    assert (workload.products_share, workload.gflops_per_second) == (0.25, 200.0)
    machine = Machine("A CPU", 2, 16_000_000_000, "Linux", "3.11.7")
    page = Report("./run benchmark", "2026-01-01", machine, "Medians.", [workload], None).markdown()
    (row,) = [line for line in page.splitlines() if line.startswith("| Slow")]
    assert "6" in row and "3" in row and "200" in page


def test_page_changes_only_in_its_section(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"# Före\n\n{BEGIN}\nold\n\nolder\n{END}\n\nafter\n")
    Page(path).replace_section("    two\n\nthree\n")
    assert path.read_text() == f"# Före\n\n{BEGIN}\n\n    two\n\nthree\n\n{END}\n\nafter\n"
    path.write_text(text := f"{END}\n{BEGIN}\n")
    for use in (Page(path).check, lambda: Page(path).replace_section("new")):
        with pytest.raises(UserError, match=r"^--page: expected the line .* found .*page\.md"):
            use()
    assert path.read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_model_has_workload_size(name):
    workload = WORKLOADS[name]
    model = MODELS[workload.model](workload)
    assert model.num_parameters == workload.parameters
    assert tuple(model.example_spec["x"].shape[1:]) == workload.features
    assert tuple(model.example_spec["y"].shape[1:]) == workload.labels


@pytest.mark.parametrize("name", WORKLOADS)
def test_step_costs_as_much_as_three_forward_passes(name):
    # A first layer needs no gradient of its input; the domain pass is one more forward pass.
    workload = WORKLOADS[name]
    examples = workload.clients * workload.examples
    forward = {
        "emnist_cnn": 676 * 9 * 32 + 576 * 288 * 64 + 9216 * 128 + 128 * 62,
        "stackoverflow_lstm": 20 * (96 * 2680 + 670 * 2680 + 670 * 96 + 96 * 10_004),
        "logistic": 60 * 10,
    }[name]
    first = {"emnist_cnn": 676 * 9 * 32, "stackoverflow_lstm": 0, "logistic": 600}[name]
    assert total_flops(round_products(workload)) == 2 * examples * (4 * forward - first)
