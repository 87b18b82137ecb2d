"""Evaluation plans report the same values as evaluations of runs."""

import numpy as np
import pytest
import tensorflow as tf

from plan_runner.export import open_export
from plan_runner.graph_session import write_checkpoint
from plan_runner.rounds import conformance_clients, run_rounds, verify
from tests.deployment.kinds import KINDS, NUM_DOMAINS, make_request
from tests.support.marks import usually
from tff_agnostic.computations.histograms import LinearGrid, LogGrid, quantile
from tff_agnostic.deployment.metrics import EvaluationMetrics, quantiles
from tff_agnostic.deployment.rounds import EVALUATION, synthetic_clients
from tff_agnostic.metrics.evaluation_report import evaluation_report
from tff_agnostic.models.model import ModelWeights

_PERCENTILES = (12.5, 50.0, 99.0)
_WORST_MIN_EXAMPLES = 3
# Tolerance for rounding: the plan's server computes in float32, and the report in float64.
_ROUNDING = 1e-6
_DOMAINS = ("a", "b", "c")


@pytest.fixture(scope="module")
def evaluated(exported):
    """Returns a function that exports an evaluation; sharing the metrics allows caching exports."""
    metrics = {
        name: EvaluationMetrics(KINDS[name].model(), _WORST_MIN_EXAMPLES, _PERCENTILES)
        for name in ("logistic", "lstm")
    }

    def make(profile, kind="logistic"):
        return exported(profile, kind=kind, rounds=EVALUATION, evaluation=metrics[kind])

    return make


def _run_round(folder, state=None):
    export = open_export(folder)
    (result,) = run_rounds(export, [conformance_clients(export)], state)
    return result


def _weights(state, prefix="server/algorithm/weights/trainable"):
    return ModelWeights([state[f"{prefix}/{number}"] for number in range(2)], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "kind"),
    usually(
        # test_private_evaluation_plans.py covers secure evaluations.
        [("daf", "logistic")],
        [(profile, kind) for profile in ("daf", "secure") for kind in ("logistic", "lstm")],
    ),
)
def test_evaluation_plan_passes_verification(evaluated, profile, kind):
    (check,) = verify(open_export(evaluated(profile, kind)))
    assert check.tensors > 30
    assert check.failing(1e-5) == []


# tests/binaries/test_export.py compares the same values in every run of the tests.
@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_evaluation_plan_equals_evaluation(evaluated, exported, cohort_runtime, tmp_path, profile):
    training = _run_round(exported(profile))
    trained = {**training.state, **training.metrics}
    folder = evaluated(profile)
    result = _evaluate_after(folder, trained, tmp_path)

    request, model = make_request(profile), KINDS["logistic"].model()
    clients = synthetic_clients(
        request.algorithm.client_data_spec, request.column_ranges, NUM_DOMAINS
    )
    evaluate = cohort_runtime.evaluation(model, NUM_DOMAINS, request.aggregation)
    output, clipped = evaluate(_weights(trained), [list(clients.values())])
    report = evaluation_report(
        model,
        _DOMAINS,
        output,
        clipped,
        worst_min_examples=_WORST_MIN_EXAMPLES,
        percentiles=_PERCENTILES,
    )
    values = {name.removeprefix("metrics/"): v for name, v in result.metrics.items()}
    for measure in ("loss", "accuracy"):
        sets = [*report.domains.values(), report.overall]
        expected = [s.measures[measure] for s in sets]
        _close(values[f"domains/{measure}"], [m.value for m in expected[:-1]])
        _close(values[f"overall/{measure}"], expected[-1].value)
        _close(values[f"worst/{measure}"], report.worst(measure))
        _close(values[f"over_clients/{measure}/mean"], [m.mean for m in expected])
        for percentile in _PERCENTILES:
            name = f"over_clients/{measure}/p{percentile:g}"
            _close(values[name], [m.percentiles[percentile] for m in expected])
    assert values["domains/num_examples"].tolist() == [
        domain.num_examples for domain in report.domains.values()
    ]
    assert values["overall/num_examples"] == report.overall.num_examples
    for name, count in report.clients.items():
        assert values[f"clients/{name}"] == count
    assert values["clients/empty"] == 1
    np.testing.assert_array_equal(values["sums/sums/counts"], output.sums.counts)
    # An evaluation does not change the state.
    for name, value in result.state.items():
        np.testing.assert_array_equal(value, trained[name], err_msg=name)


def _evaluate_after(folder, trained, tmp_path):
    state = {name: value for name, value in trained.items() if name.startswith("server/")}
    write_checkpoint(tmp_path / "server_state.ckpt", state)
    return _run_round(folder, tmp_path / "server_state.ckpt")


def _close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=_ROUNDING, atol=1e-7)


@pytest.mark.parametrize("grid", [LinearGrid(2.0, 11), LogGrid(1e-2, 1e2, 9)])
def test_plan_has_the_same_quantiles_as_report(grid):
    rng = np.random.default_rng(0)
    histograms = rng.integers(0, 3, size=[20, grid.num_bins])
    histograms[0] = 0
    histograms[1] = np.eye(grid.num_bins, dtype=np.int64)[3]
    for q in (0.0, 0.05, 0.1, 0.5, 0.7, 0.95, 1.0):
        values = quantiles(grid, tf.constant(histograms), q)
        np.testing.assert_allclose(
            values, [quantile(grid, counts, q) for counts in histograms], rtol=1e-12
        )
