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
from tff_agnostic.reports.distributions import client_figure
from tff_agnostic.reports.figures import save
from tff_agnostic.reports.run_figures import client_figures
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
        figure = client_figure(measure.name, measure.unit, rows, "test")
        save(figure, tmp_path / "figure.png")
        assert is_png((tmp_path / "figure.png").read_bytes())
        assert len(figure.legends) == (len(rows) > 1)


def test_clients_of_several_trials_are_joined_and_infinite_ones_count():
    trials = [
        ClientValues([0.2, 0.5], [1, 2], [1, 4], [1, 2], [0.2, 0.4]),
        ClientValues([0.2, 0.3, math.nan], [2, 1, 4], [4], [7], [0.8]),
    ]
    figure = client_figure("error", Unit.NONE, {"a": trials}, "test")
    shares, by_size = figure.axes
    (steps,) = shares.lines
    np.testing.assert_allclose(steps.get_xdata(), [0.2, 0.2, 0.2, 0.3, 0.5])
    # 10 clients: 3 at .2, 1 at .3, 2 at .5; of 4 the value is infinite.
    np.testing.assert_allclose(steps.get_ydata()[-3:], [30, 40, 60])
    assert steps.get_ydata()[0] == 0
    means = by_size.lines[0]
    np.testing.assert_allclose(means.get_xdata(), np.array([1, 4]) * 2**0.5)
    np.testing.assert_allclose(means.get_ydata(), [0.2, 0.6])
    ((bar,),) = [lines.get_segments() for _, _, (lines,) in by_size.containers]
    np.testing.assert_allclose(bar[:, 1], 0.6 + np.array([-1, 1]) * 0.2 * 2**0.5)


def test_the_models_of_a_run_lie_over_each_other():
    report = make_evaluation({"phone": 1.0}, split="heldout")
    drawn = client_figures(OrderedDict(main=report, average=report))
    assert list(drawn) == ["heldout clients loss", "heldout clients accuracy"]
    figure = drawn["heldout clients accuracy"]()
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["main", "average"]
    assert "heldout" in figure.axes[0].get_xlabel()
