"""Evaluations in parts, on samples of clients, of several models, and with resampling."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.support.options import make_options
from tests.support.results import make_task
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import SecureSum, SecureSumOptions
from tff_agnostic.computations.algorithm import Algorithm, Problem, RunState
from tff_agnostic.data import clients as clients_module
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.runs.build import check_readable
from tff_agnostic.program.runs.evaluation import Evaluations
from tff_agnostic.training import evaluate as evaluation
from tff_agnostic.training.evaluate import Evaluator, prepared_evaluation

_NUM_CLIENTS = 7


@pytest.fixture(scope="module")
def task():
    return make_task(("a", "b"), clients=_NUM_CLIENTS)


@pytest.fixture(scope="module")
def evaluate(cohort_runtime, task):
    return cohort_runtime.evaluation(task.model, task.num_domains, PlainSum())


@pytest.fixture(scope="module")
def weights(task):
    rng = np.random.default_rng(0)
    initial = task.model.initial_weights
    trainable = [rng.normal(size=w.shape).astype(np.float32) for w in initial.trainable]
    return ModelWeights(trainable, initial.non_trainable)


class _Recorded:
    """An evaluation that records the clients of each call."""

    def __init__(self, evaluate, task):
        self._evaluate = evaluate
        self._names = {
            task.test.read(client_id)["x"].tobytes(): client_id
            for client_id in task.test.client_ids
        }
        self.parts: list[list[str]] = []

    def for_each(self, models, parts, states=None):
        def noted():
            for clients in parts:
                self.parts.append([self._names[client["x"].tobytes()] for client in clients])
                yield clients

        return self._evaluate.for_each(models, noted(), states)


def _assert_close(actual, expected):
    tf.nest.assert_same_structure(actual, expected)
    for value, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        assert value == (pytest.approx(other, rel=1e-5) if isinstance(other, float) else other)


@pytest.mark.slow_cases("_MAX_CLIENTS-3-sizes0")
@pytest.mark.nightly_cases("_MAX_BYTES-1-sizes1")
@pytest.mark.parametrize(
    ("limit", "value", "sizes"), [("_MAX_CLIENTS", 3, [3, 3, 1]), ("_MAX_BYTES", 1, [1] * 7)]
)
def test_evaluation_in_parts_gives_equal_report(
    task, evaluate, weights, monkeypatch, limit, value, sizes
):
    expected = Evaluator(task, evaluate)(weights, on_all=True).to_json()
    assert expected["overall"]["num_examples"] == 4 * _NUM_CLIENTS
    monkeypatch.setattr(clients_module, limit, value)
    recorded = _Recorded(evaluate, task)
    _assert_close(Evaluator(task, recorded)(weights, on_all=True).to_json(), expected)
    assert list(map(len, recorded.parts)) == sizes
    assert [k for part in recorded.parts for k in part] == list(task.test.client_ids)


def test_all_evaluations_use_the_same_sample(task, evaluate, weights):
    recorded = _Recorded(evaluate, task)
    evaluate_sample = Evaluator(task, recorded, sample=3, seed=1)
    reports = [evaluate_sample(weights, on_all=False).to_json() for _ in range(2)]
    assert reports[0] == reports[1]
    first, second = recorded.parts
    assert first == second == sorted(first)
    assert len(set(first)) == 3
    assert set(first) <= set(task.test.client_ids)
    assert reports[0]["clients"]["evaluated"] == 3
    # A larger sample has all clients.
    Evaluator(task, recorded, sample=_NUM_CLIENTS + 1)(weights, on_all=False)
    assert recorded.parts[2:] == [list(task.test.client_ids)]


def _evaluations(task, evaluate, sample=None):
    """Returns the evaluations of a run of 5 rounds; its state is a dict of its models."""
    algorithm = Algorithm(
        name="any",
        problem=Problem.numbered(task.model, task.num_domains),
        initialize=dict,
        steps=(),
        finish=lambda state: state,
        models=lambda state: state,
    )
    return Evaluations(algorithm, Evaluator(task, evaluate, sample), every=2, rounds=5)


def test_last_evaluation_uses_all_clients(task, evaluate, weights):
    other = ModelWeights([np.zeros_like(w) for w in weights.trainable], [])
    recorded = _Recorded(evaluate, task)
    evaluations = _evaluations(task, recorded, sample=3)
    models = {"model": weights, "zero": other}
    for round_num, clients in ((4, 3), (5, _NUM_CLIENTS)):
        reports = evaluations(RunState(models, (), np.int32(round_num)))
        # One pass over the clients evaluates both models.
        assert len(recorded.parts.pop()) == clients and not recorded.parts
        assert list(reports) == ["model", "zero"]
        assert {r.clients["evaluated"] for r in reports.values()} == {clients}
        losses = [r.overall.measures["loss"].value for r in reports.values()]
        assert losses[1] == pytest.approx(np.log(3)) != losses[0]


def test_memory_limit_splits_models_into_passes(task, evaluate, weights, monkeypatch):
    others = [ModelWeights([k * w for w in weights.trainable], []) for k in range(4)]
    models = {str(k): other for k, other in enumerate([weights, *others])}
    whole = Evaluator(task, evaluate).evaluate_models(models, True, None)
    num_bytes = sum(w.nbytes for w in weights.trainable)
    monkeypatch.setattr(evaluation, "_MAX_BYTES_AT_ONCE", 2 * num_bytes + 1)
    recorded = _Recorded(evaluate, task)
    actual = Evaluator(task, recorded).evaluate_models(models, True, None)
    assert recorded.parts == [list(task.test.client_ids)] * 3
    assert [r.to_json() for r in actual.values()] == [r.to_json() for r in whole.values()]
    assert list(actual) == list(models)


def test_diverged_model_raises_user_error(task, evaluate, weights):
    diverged = ModelWeights([np.full_like(w, np.nan) for w in weights.trainable], [])
    evaluations = _evaluations(task, evaluate)
    with pytest.raises(
        UserError, match=r"^round 4: the model has diverged: no client's .* of 7 of"
    ):
        evaluations(RunState({"model": weights, "average": diverged}, (), np.int32(4)))


@pytest.mark.nightly
def test_only_plain_sums_resample_clients(task, cohort_runtime, streaming_runtime, weights):
    evaluate = prepared_evaluation(cohort_runtime, task, PlainSum())
    clients = [task.test.read(client_id) for client_id in task.test.client_ids]
    summed = evaluate(weights, [clients]).output
    # A client's resampling weights depend on its own message only.
    alone = [evaluate(weights, [[client]]).output for client in clients]
    counts = [entry.resampled[:, 1].sum(axis=1) / len(c["y"]) for c, entry in zip(clients, alone)]
    assert all(np.array_equal(w, np.round(w)) and w.max() > 1 for w in counts)
    losses = np.array([entry.sums.losses for entry in alone])
    expected = np.einsum("cb,cd->bd", np.array(counts), losses)
    np.testing.assert_allclose(summed.resampled[:, 0], expected, rtol=1e-5, atol=1e-5)
    streamed = prepared_evaluation(streaming_runtime, task, PlainSum())
    actual = streamed(weights, [clients[:3]]).output.resampled
    expected = sum(entry.resampled for entry in alone[:3])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    report = Evaluator(task, evaluate)(weights, on_all=True)
    total = losses.sum() / summed.sums.counts.sum()
    sizes = np.array([len(client["y"]) for client in clients])
    spread = np.sqrt(np.sum((losses.sum(axis=1) - total * sizes) ** 2)) / sizes.sum()
    drawn = report.resampled.values["loss"][:, -1]
    assert drawn.std() == pytest.approx(spread, rel=0.2)
    assert report.resampled.clients[-1] == pytest.approx(_NUM_CLIENTS, rel=0.3)
    secure = SecureSum(make_options(SecureSumOptions, limit_examples=20))
    secure_evaluate = prepared_evaluation(cohort_runtime, task, secure)
    in_secret = Evaluator(task, secure_evaluate)(weights, on_all=True)
    assert in_secret.resampled is None
    # Plain and secure evaluations count equal answers by class.
    assert in_secret.classes == report.classes
    kernel, bias = weights.trainable
    table = np.zeros([2, 3, 3], int)
    for client in clients:
        answers = (client["x"] @ kernel + bias).argmax(axis=1)
        np.add.at(table, (client["domain_id"], client["y"], answers), 1)
    assert [*report.classes.confusion.values()] == table.tolist()
    assert report.classes.counts == dict(zip(("a", "b"), table.sum(axis=2).tolist()))


def test_readability_check_reads_evenly_spaced_clients():
    clients = mock.Mock(client_ids=[f"{k:02d}" for k in range(21)])
    check_readable(clients, 5)
    ids = [call.args[0] for call in clients.read.call_args_list]
    assert ids == ["00", "05", "10", "15", "20"]
    clients.read.side_effect = UserError("damaged")
    with pytest.raises(UserError, match="damaged"):
        check_readable(clients, 5)
