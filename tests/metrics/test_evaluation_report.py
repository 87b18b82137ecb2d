"""Reports from the sums of evaluations, compared with results by hand."""

import dataclasses
import json
import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.computations.domain_losses import DomainSums, MetricSums
from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    SizeSums,
    measure_grids,
)
from tff_agnostic.metrics.evaluation_report import EvaluationReport, evaluation_report
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.models.metrics import perplexity
from tff_agnostic.program.reports.evaluation_table import evaluation_table

_NAMES = ("phone", "tablet", "watch")
_MODEL = logistic_regression(2, 3)


def _over_clients(
    measure: str, values: Sequence[Sequence[float]], model: Model = _MODEL
) -> ClientDistribution:
    """Returns the distribution over clients with these values in each row."""
    grid = measure_grids(model)[measure]
    histogram = np.zeros([len(values), grid.num_bins], np.int64)
    for row, row_values in enumerate(values):
        for value in row_values:
            histogram[row, int(grid.bin_index(np.float32(value)))] += 1
    return ClientDistribution(
        num_clients=np.array([len(v) for v in values]),
        total=np.array([sum(v) for v in values], np.float32),
        histogram=histogram,
    )


def _by_size(sizes: Sequence[int], values: Sequence[float]) -> SizeSums:
    num_clients, total = np.zeros([24], np.int64), np.zeros([24], np.float32)
    for size, value in zip(sizes, values):
        num_clients[int(np.log2(size))] += 1
        total[int(np.log2(size))] += value
    return SizeSums(num_clients, total)


def _report() -> EvaluationReport:
    """Returns a report on two clients, which have no examples of the domain watch."""
    counts = np.array([4, 6, 0])
    correct = np.array([3.0, 1.5, 0.0], np.float32)
    summed = EvaluationOutput(
        sums=DomainSums(
            losses=np.array([2.0, 9.0, 0.0], np.float32),
            counts=counts,
            metric_sums=OrderedDict(
                accuracy=MetricSums(correct, counts.astype(np.float32)),
            ),
        ),
        over_clients=OrderedDict(
            loss=_over_clients("loss", [[0.25, 0.75], [1.5], [], [0.25, 2.0]]),
            accuracy=_over_clients("accuracy", [[0.5, 1.0], [0.25], [], [0.25, 1.0]]),
        ),
        by_size=OrderedDict(
            loss=_by_size([8, 2], [2.0, 0.25]), accuracy=_by_size([8, 2], [0.25, 1.0])
        ),
        clients=OrderedDict(evaluated=2, empty=1, non_finite=0),
    )
    return evaluation_report(_MODEL, _NAMES, summed)


@pytest.fixture(scope="module")
def report() -> EvaluationReport:
    return _report()


def _resampled_losses(shift: float) -> np.ndarray:
    """Returns 40 replicates of the loss of six clients with 1 to 6 examples of one domain."""
    rng = np.random.default_rng(3)
    weights, sizes = rng.poisson(1.0, (40, 6)), np.arange(1.0, 7.0)
    losses = sizes * (rng.uniform(0.1, 1.0, 6) + shift)
    ratio = (np.array([losses.sum()], np.float32), np.array([21]))
    summed = EvaluationOutput(
        sums=DomainSums(*ratio, metric_sums=OrderedDict()),
        over_clients=OrderedDict(loss=_over_clients("loss", [[1.0], [1.0]])),
        by_size=OrderedDict(loss=_by_size([8], [1.0])),
        clients=OrderedDict(evaluated=6, empty=0, non_finite=0),
        resampled=np.stack([weights @ losses, weights @ sizes], 1)[..., np.newaxis],
    )
    model = dataclasses.replace(_MODEL, metrics=())
    return evaluation_report(model, ("phone",), summed).replicates().values["loss"]


def test_constant_added_to_losses_shifts_replicates():
    losses = _resampled_losses(0.0)
    assert losses.std() > 0.01
    np.testing.assert_allclose(_resampled_losses(-5.0), losses - 5.0, atol=1e-5)


def test_statistics_over_clients_match_hand_computation(report):
    accuracy = report.domains["phone"].measures["accuracy"]
    assert accuracy.num_clients == 2
    assert accuracy.mean == pytest.approx(0.75)
    assert accuracy.percentiles == pytest.approx({10: 0.55, 50: 0.75, 90: 0.95, 95: 0.975})
    loss = report.overall.measures["loss"]
    assert loss.mean == pytest.approx(1.125)
    expected = {10: 0.425, 50: 1.125, 90: 1.825, 95: 1.9125}
    assert loss.percentiles == pytest.approx(expected, rel=0.03)
    # The worst tenth of two clients is a fraction of the worst client.
    assert loss.superquantile == pytest.approx(2.0, rel=0.03)
    assert accuracy.superquantile == pytest.approx(0.5)


def test_empty_domain_is_undefined_and_not_worst(report):
    watch = report.domains["watch"].measures["loss"]
    assert watch.num_clients == 0
    assert all(map(math.isnan, (watch.value, *watch.over_clients().values())))
    assert report.worst_domain("loss") == report.worst_domain("accuracy") == "tablet"
    assert report.not_counted == ("watch",)
    assert report.worst("loss") == 1.5
    assert report.worst("accuracy") == 0.25


@golden.text
def test_table_and_json_match(report):
    """Absent numbers are null or -; the JSON has the first domain and no overall numbers here."""
    nothing = dataclasses.replace(report, clipped={"sums": 0})
    assert evaluation_table(nothing) == evaluation_table(report)
    content = json.loads(
        json.dumps(report.to_json(), allow_nan=False), parse_float=lambda x: round(float(x), 5)
    )
    for name in ("tablet", "watch"):
        assert content["domains"].pop(name).keys() == content["domains"]["phone"].keys()
    assert content.pop("overall").keys() == content["domains"]["phone"].keys()
    weights = {"phone": 0.1, "tablet": 0.7, "watch": 0.2}
    return f"{evaluation_table(report, weights, 'pull')}\n\n{json.dumps(content, indent=1)}"


def test_report_names_split_and_clipped_values(report):
    clipped = {"sums": 3, "clients": 0, "examples": 2}
    heldout = dataclasses.replace(report, split="heldout", clipped=clipped)
    assert heldout.to_json()["clipped"] == clipped
    table = evaluation_table(heldout)
    assert "validation examples" in table and "test examples" not in table
    assert table.endswith("which were clipped: 3 of sums, 2 of examples")


@pytest.mark.parametrize(
    ("fewest", "worst", "left_out", "difference"),
    [
        (1, "tablet", ["watch"], 1.0),
        (5, "tablet", ["phone", "watch"], 0.0),
        (7, None, ["phone", "tablet", "watch"], None),
    ],
)
def test_small_domain_is_not_counted_as_worst(report, fewest, worst, left_out, difference):
    result = dataclasses.replace(report, worst_min_examples=fewest)
    assert result.worst_domain() == result.worst_domain("accuracy") == worst
    values = result.to_json()
    assert values["worst_domain"] == values["worst"]["loss"]["domain"] == worst
    assert values["worst"]["loss"]["value"] == (1.5 if worst else None)
    assert values["difference"]["loss"] == difference
    assert (values["worst_min_examples"], values["not_counted"]) == (fewest, left_out)
    lines = evaluation_table(result).splitlines()
    assert lines[-1].endswith(f"--worst_min_examples={fewest} test examples: {', '.join(left_out)}")
    # Each measure's table marks the worst domain.
    assert [line.split()[0] for line in lines if "(worst)" in line] == [worst] * (2 * bool(worst))
    # A domain that is not counted still has its numbers.
    assert lines[2].split()[1:3] == ["4", "0.5000"]
    assert lines[5].split()[1] == ("-" if difference is None else f"{difference:.4f}")


def test_single_domain_has_no_difference(report):
    one = dataclasses.replace(report, domains={"phone": report.domains["phone"]})
    assert one.difference("loss") == 0
    assert "difference" not in evaluation_table(one)
    unheld = dataclasses.replace(report, domains={"watch": report.domains["watch"]})
    assert math.isnan(unheld.difference("loss"))
    assert unheld.to_json()["difference"] == {"loss": None, "accuracy": None}


def _perplexities(cross_entropies: Sequence[Sequence[float]]) -> EvaluationReport:
    """Returns a report on clients of one word each, given the cross-entropies by domain."""
    model = dataclasses.replace(_MODEL, metrics=(perplexity(5),))
    sums = np.array([sum(entropies) for entropies in cross_entropies], np.float32)
    counts = np.array([len(entropies) for entropies in cross_entropies])
    rows = [*cross_entropies, [ratio for entropies in cross_entropies for ratio in entropies]]
    summed = EvaluationOutput(
        sums=DomainSums(
            losses=sums,
            counts=counts,
            metric_sums=OrderedDict(perplexity=MetricSums(sums, counts.astype(np.float32))),
        ),
        over_clients=OrderedDict(
            loss=_over_clients("loss", rows),
            perplexity=_over_clients("perplexity", rows, model),
        ),
        by_size=OrderedDict(
            (name, _by_size([1] * len(rows[-1]), rows[-1])) for name in ("loss", "perplexity")
        ),
        clients=OrderedDict(evaluated=2, empty=0, non_finite=0),
    )
    return evaluation_report(model, _NAMES[: len(cross_entropies)], summed)


def test_perplexity_statistics_are_perplexities():
    report = _perplexities([[math.log(50), math.log(200)], [math.log(1000)]])
    phone = report.domains["phone"].measures["perplexity"]
    # The geometric mean of 50 and 200: over words, and over clients.
    assert phone.value == pytest.approx(100, rel=1e-6)
    assert phone.mean == pytest.approx(100, rel=1e-6)
    # Percentiles are interpolated between cross-entropies.
    expected = {p: 50 * 4 ** (p / 100) for p in (10, 50, 90, 95)}
    assert phone.percentiles == pytest.approx(expected, rel=0.01)
    assert phone.superquantile == pytest.approx(200, rel=0.01)
    assert report.domains["tablet"].measures["perplexity"].value == pytest.approx(1000, rel=1e-6)
    assert report.overall.measures["perplexity"].value == pytest.approx(1e7 ** (1 / 3), rel=1e-6)
    assert report.worst_domain("perplexity") == "tablet"
    result = report.to_json()
    assert result["worst"]["perplexity"]["value"] == pytest.approx(1000, rel=1e-6)
    assert result["difference"]["perplexity"] == pytest.approx(900, rel=1e-6)
    assert result["overall"]["over_clients"]["perplexity"]["p50"] == pytest.approx(200, rel=0.01)
    # The loss is the mean cross-entropy.
    assert report.domains["tablet"].measures["loss"].value == pytest.approx(math.log(1000))
    percentiles = ", ".join(f"{p:.2f}" for p in phone.percentiles.values())
    assert f" 100.00 100.00 ({percentiles}) {phone.superquantile:.2f} " in " ".join(
        evaluation_table(report).split()
    )


def test_huge_perplexity_is_infinite():
    report = _perplexities([[1e4], [2.0]])
    assert report.domains["phone"].measures["perplexity"].value == math.inf
    assert report.worst("perplexity") == report.difference("perplexity") == math.inf
    assert report.to_json()["domains"]["phone"]["perplexity"] is None
    assert "inf" in evaluation_table(report)
