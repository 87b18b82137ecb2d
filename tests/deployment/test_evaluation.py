"""Evaluations as plans: what a run reports of a checkpoint, of any that a training has left."""

import numpy as np
import pytest
import tensorflow as tf

from plan_runner.export import open_export
from plan_runner.graph_session import write_checkpoint
from plan_runner.rounds import conformance_clients, run_rounds, verify
from tests.deployment.kinds import KINDS, NUM_DOMAINS, make_request
from tests.marks import usually
from tff_agnostic.computations.histograms import LinearGrid, LogGrid, quantile
from tff_agnostic.deployment.metrics import EvaluationMetrics, quantiles
from tff_agnostic.deployment.rounds import EVALUATION, synthetic_clients
from tff_agnostic.metrics.evaluation_report import evaluation_report
from tff_agnostic.models.model import ModelWeights

_PERCENTILES = (12.5, 50.0, 99.0)
_WORST_MIN_EXAMPLES = 3
# Of the server's float32 beside the report's float64.
_ROUNDING = 1e-6
_DOMAINS = ("a", "b", "c")


@pytest.fixture(scope="module")
def evaluated(exported):
    """Returns the export of an evaluation; the measure is one, as `make_request` compares it."""
    metrics = {
        name: EvaluationMetrics(KINDS[name].model(), _WORST_MIN_EXAMPLES, _PERCENTILES)
        for name in ("logistic", "lstm")
    }

    def make(profile, kind="logistic"):
        return exported(profile, kind=kind, rounds=EVALUATION, evaluation=metrics[kind])

    return make


def _played(folder, state=None):
    export = open_export(folder)
    (result,) = run_rounds(export, [conformance_clients(export)], state)
    return result


def _weights(state, prefix="server/algorithm/weights/trainable"):
    return ModelWeights([state[f"{prefix}/{number}"] for number in range(2)], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "kind"),
    usually(
        # A secure one with noise is in test_private_evaluation_plans.
        [("daf", "logistic")],
        [(profile, kind) for profile in ("daf", "secure") for kind in ("logistic", "lstm")],
    ),
)
def test_evaluations_are_verified(evaluated, profile, kind):
    (check,) = verify(open_export(evaluated(profile, kind)))
    assert check.tensors > 30
    assert check.failing(1e-5) == []


# test_export compares what the commands print, of plain sums, in the usual tests.
@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_it_reports_what_a_run_reports_of_a_checkpoint(
    evaluated, exported, cohort_runtime, tmp_path, profile
):
    """Of a state that a training's plan has led to, as a server would take it."""
    trained = _played(exported(profile)).tensors
    folder = evaluated(profile)
    result = _played_after(folder, trained, tmp_path)

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
    found = {name.removeprefix("metrics/"): v for name, v in result.metrics.items()}
    for measure in ("loss", "accuracy"):
        sets = [*report.domains.values(), report.overall]
        expected = [s.measures[measure] for s in sets]
        _close(found[f"domains/{measure}"], [m.value for m in expected[:-1]])
        _close(found[f"overall/{measure}"], expected[-1].value)
        _close(found[f"worst/{measure}"], report.worst(measure))
        _close(found[f"over_clients/{measure}/mean"], [m.mean for m in expected])
        for percentile in _PERCENTILES:
            values = [m.percentiles[percentile] for m in expected]
            _close(found[f"over_clients/{measure}/p{percentile:g}"], values)
    assert found["domains/num_examples"].tolist() == [
        domain.num_examples for domain in report.domains.values()
    ]
    assert found["overall/num_examples"] == report.overall.num_examples
    for name, count in report.clients.items():
        assert found[f"clients/{name}"] == count
    assert found["clients/empty"] == 1
    np.testing.assert_array_equal(found["sums/sums/counts"], output.sums.counts)
    # What was evaluated is as it was.
    for name, value in result.state.items():
        np.testing.assert_array_equal(value, trained[name], err_msg=name)


def _played_after(folder, trained, tmp_path):
    state = {name: value for name, value in trained.items() if name.startswith("server/")}
    write_checkpoint(tmp_path / "server_state.ckpt", state)
    return _played(folder, tmp_path / "server_state.ckpt")


def _close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=_ROUNDING, atol=1e-7)


@pytest.mark.parametrize("grid", [LinearGrid(2.0, 11), LogGrid(1e-2, 1e2, 9)])
def test_quantiles_are_those_of_the_report(grid):
    rng = np.random.default_rng(0)
    histograms = rng.integers(0, 3, size=[20, grid.num_bins])
    histograms[0] = 0
    histograms[1] = np.eye(grid.num_bins, dtype=np.int64)[3]
    for q in (0.0, 0.05, 0.1, 0.5, 0.7, 0.95, 1.0):
        found = quantiles(grid, tf.constant(histograms), q)
        np.testing.assert_allclose(
            found, [quantile(grid, counts, q) for counts in histograms], rtol=1e-12
        )
