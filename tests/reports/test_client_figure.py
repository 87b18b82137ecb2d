"""The clients of an evaluation, from sums to a figure."""

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.run.harness import is_png, make_evaluation, make_task
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.computations.evaluation import ClientDistribution, SizeSums
from tff_agnostic.metrics.evaluation_report import (
    ClientValues,
    client_values,
    client_values_from_json,
)
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.metrics import perplexity, root_mean_squared_error
from tff_agnostic.models.model import Measure, ModelWeights, measures_of
from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.figures import save
from tff_agnostic.reports.run_figures import bar_edges, client_figure, client_figures
from tff_agnostic.run.evaluation import Evaluator

_MEASURES = measures_of(logistic_regression(2, 3))
_PERPLEXITY = Measure("perplexity", Unit.FACTOR, False, perplexity(5))


def test_an_evaluation_knows_its_clients_by_value_and_by_size(cohort_runtime):
    task = make_task(("a", "b", "c"), clients=9)
    rng = np.random.default_rng(3)
    initial = task.model.initial_weights
    weights = ModelWeights([rng.normal(size=w.shape).astype(np.float32) for w in initial[0]], [])
    evaluate = cohort_runtime.evaluation(task.model, 3, PlainSum())
    report = Evaluator(task, evaluate, percentiles=(97.5, 20.0))(weights, on_all=True)
    matrix, offsets = weights.trainable
    clients = [task.test.read(client_id) for client_id in task.test.client_ids]
    exact = np.array([np.mean((c["x"] @ matrix + offsets).argmax(1) == c["y"]) for c in clients])
    found = report.overall.measures["accuracy"]
    assert list(found.percentiles) == [20.0, 97.5]
    for percentile, value in found.percentiles.items():
        assert abs(value - np.percentile(exact, percentile)) <= 0.0025 + 1e-6
    # A tenth of nine clients is nine tenths of the worst one.
    assert abs(found.superquantile - exact.min()) <= 0.0025 + 1e-6
    of = report.client_values["accuracy"]
    values, counts = np.unique(np.round(exact * 200) / 200, return_counts=True)
    np.testing.assert_allclose(of.values, values, rtol=1e-5)
    assert of.clients == counts.tolist()
    # All of them have 6 examples, which is a bin of 4 to 7.
    assert (of.sizes, of.size_clients) == ([4], [9])
    assert of.size_means == pytest.approx([exact.mean()])


def _sums(bins: dict[int, int], num_bins: int) -> ClientDistribution:
    histogram = np.zeros([1, num_bins], np.int64)
    for position, count in bins.items():
        histogram[0, position] = count
    return ClientDistribution(histogram.sum(1), np.zeros([1]), histogram)


def test_what_is_of_a_transform_is_transformed():
    size = SizeSums(np.array([0, 2, 0, 1]), np.array([0, 2 * math.log(30), 0, 1e4], np.float32))
    of = client_values(_PERPLEXITY, _sums({0: 1, 100: 3}, 1001), size)
    # Steps of 0.02 nats.
    assert of.values == pytest.approx([1, math.exp(2)], rel=1e-5)
    assert of.clients == [1, 3]
    assert of.sizes == [2, 8]
    assert of.size_means == [pytest.approx(30), math.inf]
    found: Any = json.loads(json.dumps(of.to_json(), allow_nan=False))
    assert found["by_size"]["mean"][1] is None
    again = client_values_from_json(found)
    assert again.values == of.values and again.sizes == of.sizes
    assert again.size_means[0] == of.size_means[0] and math.isnan(again.size_means[1])


@pytest.mark.parametrize("name", ["loss", "accuracy"])
@pytest.mark.parametrize("seed", range(5))
def test_bars_hold_all_clients_and_as_many_bins_each(name, seed):
    measure = _MEASURES[name]
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random(rng.integers(1, 60)))
    edges = bar_edges(measure, values.tolist())
    assert edges[0] <= values[0] and values[-1] <= edges[-1]
    assert 1 <= len(edges) - 1 <= 30
    counts, _ = np.histogram(values, edges)
    assert counts.sum() == len(values)
    widths = np.diff(edges) if name == "accuracy" else np.diff(np.log(edges))
    np.testing.assert_allclose(widths, widths[0], rtol=1e-6)


def test_bars_reach_the_ends_of_the_grid():
    accuracy = _MEASURES["accuracy"]
    edges = bar_edges(accuracy, [0.0, 0.5, 1.0])
    # 201 bins, 7 to a bar; the last bar goes on beyond the grid.
    np.testing.assert_allclose(edges, -0.0025 + 0.035 * np.arange(30))
    assert len(bar_edges(accuracy, [])) == len(bar_edges(accuracy, [math.nan, 0.5])) == 2


@pytest.mark.parametrize(
    "measure",
    [
        _MEASURES["accuracy"],
        _PERPLEXITY,
        Measure("error", Unit.NONE, False, root_mean_squared_error(10.0)),
    ],
    ids=lambda measure: measure.name,
)
@pytest.mark.parametrize(
    "of",
    [
        ClientValues([], [], [], [], []),
        ClientValues([0.0], [1], [1], [1], [0.0]),
        ClientValues([1.0, 20.0, math.nan], [1, 2, 1], [1, 4, 2**23], [1, 2, 1], [1, 20, math.inf]),
    ],
    ids=["nobody", "one at 0", "some infinite"],
)
def test_whatever_there_is_can_be_drawn(tmp_path, measure, of):
    for rows in ({"a": [of]}, {"$a$": [of, of], "_b": [of]}):
        figure = client_figure(measure, rows, "test")
        save(figure, tmp_path / "figure.png")
        assert is_png((tmp_path / "figure.png").read_bytes())
        assert (figure.axes[1].get_legend() is not None) == (len(rows) > 1)


def test_the_models_of_a_run_lie_over_each_other():
    report = make_evaluation({"phone": 1.0}, split="heldout")
    drawn = client_figures(OrderedDict(main=report, average=report))
    assert list(drawn) == ["heldout clients loss", "heldout clients accuracy"]
    histogram, by_size = drawn["heldout clients accuracy"]().axes
    assert [t.get_text() for t in by_size.get_legend().get_texts()] == ["main", "average"]
    assert "heldout" in histogram.get_xlabel()
