"""Numbers and tables from known timings, and the costs of the workloads."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.timing.machine import Machine
from benchmarks.timing.own_side import MODELS
from benchmarks.timing.page import BEGIN, END, Page
from benchmarks.timing.products import Product, round_products, total_flops
from benchmarks.timing.products_side import operands
from benchmarks.timing.report import Report
from benchmarks.timing.results import SideResult, WorkloadResult
from benchmarks.timing.scale import CohortResult, LongRun, ScaleResult, StoreResult
from benchmarks.timing.workloads import WORKLOADS, logistic, make_clients
from tests.support import golden
from tff_agnostic.base.errors import UserError


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
        store=StoreResult(5_000, [("open", 1.25, 600_000_000)]),
    )
    machine = Machine("A CPU", 2, 16_000_000_000, "Linux", "3.11.7")
    return Report("./run benchmark", "2026-01-01", machine, "Medians.", [workload], scale)


@golden.text
def test_page_and_json_show_known_timings(report):
    """The page has medians and ratios over all repetitions; the JSON has every round."""
    return f"{report.markdown()}\n{json.dumps(report.to_json(), indent=1)}"


def test_failed_side_is_not_compared(report, workload):
    ours = side("Ours", failure="no")
    failed = WorkloadResult("tiny", "sizes", [ours, workload.sides[1]], workload.products, 10**11)
    assert failed.ratio(failed.sides[1]) is None
    assert failed.products_share is None
    assert "GFLOP" not in Report("", "", report.machine, "", [failed], None).markdown()


# --- A command replaces one section of a page


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "page.md"


def test_replacing_changes_only_the_section(path):
    path.write_text(f"# Före\n\n{BEGIN}\nold\n\nolder\n{END}\n\nafter\n")
    for text in ("one\n", "    two\n\nthree\n"):
        Page(path).replace_section(text)
        expected = f"# Före\n\n{BEGIN}\n\n{text}\n{END}\n\nafter\n"
        assert path.read_text() == expected


@pytest.mark.parametrize(
    "text", ["text\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"a {BEGIN} b {END}\n"]
)
def test_page_without_section_raises_and_stays_unchanged(path, text):
    path.write_text(text)
    for use in (Page(path).check, lambda: Page(path).replace_section("new")):
        with pytest.raises(
            UserError, match=r"^--page: expected the line .* found .*page\.md without"
        ):
            use()
    assert path.read_text() == text


# --- Workloads have known sizes, data and operations


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_model_has_workload_size(name):
    workload = WORKLOADS[name]
    model = MODELS[workload.model](workload)
    assert model.num_parameters == workload.parameters
    assert tuple(model.example_spec["x"].shape[1:]) == workload.features
    assert tuple(model.example_spec["y"].shape[1:]) == workload.labels


@pytest.mark.parametrize("name", WORKLOADS)
def test_clients_have_workload_shapes(name):
    workload = WORKLOADS[name]
    clients = make_clients(workload)
    assert len(clients) == workload.clients
    for client in clients[:3]:
        assert client["x"].shape == (workload.examples, *workload.features)
        assert client["y"].shape == (workload.examples, *workload.labels)
        assert client["domain_id"].shape == (workload.examples,)
        assert client["x"].dtype == (np.int32 if workload.tokens else np.float32)
        assert client["y"].dtype == client["domain_id"].dtype == np.int32
        assert 0 <= client["y"].min() <= client["y"].max() < workload.classes
        assert set(client["domain_id"]) <= set(range(workload.domains))
        if workload.tokens:
            assert client["x"].min() > 0 and client["x"].max() < workload.classes


def test_softmax_regression_has_known_products():
    workload = logistic(clients=7)
    # The domain pass has matrix products, and so do the scores and the gradient of each step.
    assert round_products(workload) == [
        Product(m=40, k=60, n=10, count=1, batch=7),
        Product(m=10, k=60, n=10, count=4, batch=7),
        Product(m=60, k=10, n=10, count=4, batch=7),
    ]
    assert total_flops(round_products(workload)) == 3 * 2 * 7 * 40 * 60 * 10


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


def test_operands_have_product_shapes():
    left, right = operands(Product(m=2, k=3, n=4, count=1, batch=5))
    assert (left.shape, right.shape) == ((5, 2, 3), (5, 3, 4))
    left, right = operands(Product(m=2, k=3, n=4, count=9))
    assert (left.shape, right.shape) == ((2, 3), (3, 4))
