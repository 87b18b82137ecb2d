"""A user's aggregation with a state works in rounds, checkpoints and evaluations."""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.clients import cohorts, make_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.aggregations.aggregation import Aggregation, ClientFacts, FederatedSums
from tff_agnostic.base.report_fields import ReportField, ReportFields, paired
from tff_agnostic.models import logistic_regression
from tff_agnostic.saving.checkpoints import CheckpointFolder

pytestmark = pytest.mark.slow

_FIRST_NORM = 0.125
_ROUNDS = 5


class _State(NamedTuple):
    rounds: tf.Tensor
    norm: tf.Tensor


@dataclasses.dataclass(frozen=True)
class _HalvingNorm(Aggregation):
    """Plain sums of client outputs, clipped to a norm that is halved after each round.

    Attributes:
        first_norm: Norm in the first round, divided by the number of fields in a step's output.
    """

    first_norm: float = _FIRST_NORM

    name = "halving_norm"

    def initialize(self, bounds: Any) -> _State:
        return _State(tf.constant(0), tf.constant(self.first_norm * len(bounds._fields)))

    def client_params(self, state: _State) -> tf.Tensor:
        return state.norm

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        del bounds, client
        real = [v for v in tf.nest.flatten(output) if v.dtype.is_floating]
        factor = tf.minimum(1.0, params / tf.maximum(tf.linalg.global_norm(real), 1e-12))
        return tf.nest.map_structure(lambda v: v * factor if v.dtype.is_floating else v, output)

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        del bounds
        return sums.plain(encoded)

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        del bounds
        return _State(state.rounds + 1, state.norm / 2), summed, OrderedDict(norm=state.norm)

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        del bounds
        return OrderedDict(norm=ReportField(f"{prefix}norm", "norm that answers are scaled to"))


class _LastNorm(_HalvingNorm):
    """Plain sums whose state is the last sum's norm."""

    name = "last_norm"

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        del params, bounds, client
        return output

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        del bounds
        real = [v for v in tf.nest.flatten(summed) if v.dtype.is_floating]
        norm = tf.linalg.global_norm(real)
        return _State(state.rounds + 1, norm), summed, OrderedDict(norm=norm)


def _scaled(output: Any, norm: float) -> Any:
    """Returns an output scaled to a norm, like `_HalvingNorm.encode`, in NumPy and float64."""
    leaves = [np.asarray(v) for v in tf.nest.flatten(output)]
    real = [v.astype(np.float64) for v in leaves if v.dtype == np.float32]
    size = np.sqrt(sum(np.sum(v**2) for v in real))
    factor = min(1.0, norm / max(size, 1e-12))
    scaled = [(v * factor).astype(v.dtype) if v.dtype == np.float32 else v for v in leaves]
    return tf.nest.pack_sequence_as(output, scaled)


def _summed(outputs: Sequence[Any]) -> Any:
    def add(*values: np.ndarray) -> tf.Tensor:
        return tf.constant(np.sum(values, axis=0, dtype=values[0].dtype))

    return tf.nest.map_structure(add, *outputs)


@functools.cache
def _expected(name: str, first_norm: float = _FIRST_NORM) -> Any:
    """Returns the algorithm's state after all rounds, with the aggregation in NumPy."""
    algorithm = build(name)
    training = EagerTraining(algorithm)
    state, norm = training.initialize(), first_norm
    for clients in cohorts(_ROUNDS):
        sums: tuple[Any, ...] = ()
        for _ in algorithm.steps:
            outputs = [training.client_output(state, client, sums) for client in clients]
            scaled = [_scaled(output, norm * len(output._fields)) for output in outputs]
            sums = (*sums, _summed(scaled))
        state, _ = training.finish(state, sums)
        norm /= 2
    return state.algorithm


def _by_name(training: Any, report: Any) -> Iterator[tuple[str, Any]]:
    return ((quantity.name, value) for quantity, value in paired(training.quantities, report))


@pytest.mark.nightly_cases("tff_runtime")
@pytest.mark.parametrize("runtime", ["tff_runtime", "cohort_runtime"])
def test_rounds_match_numpy(request, runtime):
    name = "above_mean"
    training = request.getfixturevalue(runtime).training(build(name), _HalvingNorm())
    state, reports = run_rounds(training, cohorts(_ROUNDS))
    assert_all_close(state.algorithm, _expected(name), rtol=1e-4, atol=1e-6)
    # The aggregation has a separate state for each step.
    fields = {"survey": 2, "training": 8}
    names = [exchange.name for exchange in build(name).steps]
    assert [kept.rounds for kept in state.aggregations] == [_ROUNDS] * len(names)
    for k, exchange in enumerate(names):
        norms = [_FIRST_NORM * fields[exchange] * 0.5**t for t in range(_ROUNDS + 1)]
        column = f"{exchange} norm"
        reported = [dict(_by_name(training, report))[column] for report in reports]
        assert [*reported, state.aggregations[k].norm] == norms
    # Without scaling, the weights differ.
    actual, other = (s.weights.trainable[0] for s in (state.algorithm, _expected(name, 1e9)))
    assert not np.allclose(actual, other, rtol=1e-2)


def test_checkpoint_restores_the_aggregations_state(streaming_runtime, tmp_path):
    algorithm = build("above_mean")
    training = streaming_runtime.training(algorithm, _HalvingNorm())
    expected, expected_reports = run_rounds(training, cohorts(_ROUNDS))
    halfway, _ = run_rounds(training, cohorts(_ROUNDS)[:2])
    checkpoints = CheckpointFolder(tmp_path, keep=1)
    checkpoints.save(int(halfway.round_num), halfway, algorithm.models(halfway.algorithm))
    restored = checkpoints.load_latest().restore(training.initialize(), "here")
    assert_identical(restored, halfway)
    state, reports = run_rounds(training, cohorts(_ROUNDS)[2:], restored)
    assert_identical(state, expected)
    assert_identical(reports, expected_reports[2:])


def test_evaluation_starts_from_initial_state(cohort_runtime):
    model = logistic_regression(4, 3)
    evaluate = cohort_runtime.evaluation(model, 3, _HalvingNorm())
    (clients,) = cohorts(1)
    first, second = (evaluate(model.initial_weights, [clients]).output for _ in range(2))
    assert_identical(first, second)
    plain = cohort_runtime.evaluation(model, 3, _HalvingNorm(1e9))(model.initial_weights, [clients])
    assert np.all(first.sums.losses < plain.output.sums.losses)


def test_non_finite_sum_keeps_the_state(streaming_runtime):
    """Each client's output is finite, but their sum overflows float32."""
    training = streaming_runtime.training(build("fed_avg", client_epochs=1), _LastNorm())
    start = training.initialize()
    far_out = make_client(np.full([1, 4], 3e38, np.float32), [1], [2])
    state, report = training.next(start, [far_out] * 60)
    assert report["skipped"] == 1
    assert_identical((state.algorithm, state.aggregations), (start.algorithm, start.aggregations))
    after, report = training.next(state, cohorts(1)[0])
    assert report["skipped"] == 0
    assert np.isfinite(after.aggregations[0].norm)
