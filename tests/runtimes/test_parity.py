"""Every runtime gives the numbers of TFF's, whatever it runs and however it runs it.

What is registered takes part without an edit here: algorithms, aggregations, runtimes and client
modes. Rounds and evaluations see clients of uneven sizes, of one example, without examples and,
where inputs are real numbers, one whose numbers are not finite; batches do not divide the clients.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import assert_identical, random_client, run_rounds
from tests.models import keras_zoo
from tff_agnostic.computations.aggregation import AGGREGATIONS, SecureBounds
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.models import (
    Model,
    accuracy,
    logistic_regression,
    model_from_keras,
    next_word_lstm,
)
from tff_agnostic.models.functional import Examples, ModelWeights
from tff_agnostic.runtimes.client_modes import CLIENT_MODES
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.lanes import Lanes
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES

_DOMAINS = 3
# `target_domain` and `domain_weights` are ignored by the algorithms that have no use for them.
_PARAMS = AlgorithmParams(
    local_training=LocalTrainingParams(learning_rate=0.3, epochs=2, batch_size=4),
    domain_weights=DomainWeightsParams(learning_rate=0.1, window_size=2),
    target_domain=1,
    seed=7,
)
_BOUNDS = SecureBounds(max_examples=20)
# Of the largest value of an array; smaller arrays are compared as if it were 0.01.
_TOLERANCE, _FLOOR = 1e-5, 0.01
# Cohorts of uneven sizes; the empty one is the last.
_SIZES = ((9, 0, 1, 14, 6), (3, 1, 11), (2, 8, 0, 5, 4, 1), ())
# Two take a step together, so that a cohort has several shards.
_GROUP = 2
_ALL = "TFF_AGNOSTIC_ALL_COMBINATIONS"
_MODES = [mode for mode in CLIENT_MODES if mode != "auto"]


class _Kind(NamedTuple):
    """A kind of model.

    Attributes:
        model: Makes one.
        client: Draws a client of a size.
        has_real_inputs: Whether inputs can be not finite.
        has_relu: Of a number that is not finite, TensorFlow's kernels make 0 or leave it, each as
            it likes: an evaluation sees such a client, or does not.
        can_be_vectorised: Whether TensorFlow can vectorise it; see `test_client_modes`.
    """

    model: Callable[[], Model]
    client: Callable[[np.random.Generator, int], dict[str, Any]]
    has_real_inputs: bool = True
    has_relu: bool = False
    can_be_vectorised: bool = True


def _from_zoo(kind: keras_zoo.Kind, has_real_inputs: bool = True) -> _Kind:
    def client(rng: np.random.Generator, size: int) -> dict[str, Any]:
        domain_id = rng.integers(_DOMAINS, size=size).astype(np.int32)
        return {"x": kind.x(rng, size), "y": kind.y(rng, size), "domain_id": domain_id}

    def model() -> Model:
        return model_from_keras(
            kind.build,
            loss=kind.loss,
            example_spec={"x": kind.x_spec, "y": kind.y_spec},
            metrics=[accuracy()],
        )

    return _Kind(model, client, has_real_inputs)


def _bag_of_words() -> tf.keras.Model:
    tokens = tf.keras.Input([5], dtype=tf.int32)
    mean = tf.reduce_mean(tf.keras.layers.Embedding(11, 4)(tokens), axis=1)
    return tf.keras.Model(tokens, tf.keras.layers.Dense(3)(mean))


_BAG_OF_WORDS = keras_zoo.classification(_bag_of_words, 5)._replace(
    x=lambda rng, n: rng.integers(11, size=[n, 5]).astype(np.int32),
    x_spec=tf.TensorSpec([None, 5], tf.int32),
)


def _sentences(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    # Sentences of one to three words, 0 after them.
    words = rng.integers(1, 9, size=[size, 3])
    x = np.where(np.arange(3) < rng.integers(1, 4, size=[size, 1]), words, 0).astype(np.int32)
    domain_id = rng.integers(_DOMAINS, size=size).astype(np.int32)
    return {"x": x, "y": np.roll(x, -1, axis=1), "domain_id": domain_id}


_KINDS = {
    "logistic": _Kind(
        lambda: logistic_regression(4, 3),
        lambda rng, size: random_client(rng, size, range(_DOMAINS)),
    ),
    "dropout": _from_zoo(keras_zoo.KINDS["dense_with_dropout"])._replace(has_relu=True),
    "convolutional": _from_zoo(keras_zoo.KINDS["convolutional"])._replace(
        has_relu=True, can_be_vectorised=False
    ),
    "dict_of_inputs": _from_zoo(keras_zoo.KINDS["two_inputs"]),
    "embedding": _from_zoo(_BAG_OF_WORDS, has_real_inputs=False),
    "next_word": _Kind(
        lambda: next_word_lstm(5, embedding=3, units=4, sequence_length=3),
        _sentences,
        has_real_inputs=False,
    ),
}


class Combination(NamedTuple):
    """What runs."""

    algorithm: str
    aggregation: str
    kind: str


# Other runtimes than `cohort`, which hand work to others of its kind, run the first ones only.
_FIRST_KIND = next(iter(_KINDS))
_FIRST = Combination(next(iter(ALGORITHMS)), next(iter(AGGREGATIONS)), _FIRST_KIND)


class Way(NamedTuple):
    """How it runs."""

    runtime: str
    client_mode: str


_WAYS = [Way(name, mode) for name in RUNTIMES if name != "tff" for mode in _MODES]


def _name(parts: Sequence[str]) -> str:
    return "-".join(parts)


def _can_run(way: Way, kind: str) -> bool:
    return way.client_mode != "vectorised" or _KINDS[kind].can_be_vectorised


def _runs(way: Way, combination: Combination) -> bool:
    """Whether the way is tried: of `cohort` and the first kind of model every one.

    Of the other kinds and runtimes each aggregation is tried with one mode.
    """
    kind, is_first_kind = combination.kind, combination.kind == _FIRST_KIND
    if not _can_run(way, kind) or (way.runtime != "cohort" and not is_first_kind):
        return False
    if _ALL in os.environ or (way.runtime == "cohort" and is_first_kind):
        return True
    number = [*_KINDS].index(kind) + [*AGGREGATIONS].index(combination.aggregation)
    modes = [mode for mode in _MODES if _can_run(Way(way.runtime, mode), kind)]
    is_first_algorithm = combination.algorithm == _FIRST.algorithm
    return way.client_mode == modes[number % len(modes)] and (
        way.runtime == "cohort" or is_first_algorithm
    )


def _spoiled(client: dict[str, Any]) -> dict[str, Any]:
    x = tf.nest.map_structure(np.copy, client["x"])
    column = next(c for c in tf.nest.flatten(x) if c.dtype == np.float32)
    column[-1, 0] = np.nan
    return {**client, "x": x}


def _cohorts(kind: _Kind, spoiled: bool) -> list[list[Examples]]:
    rng = np.random.default_rng(3)
    cohorts = [[kind.client(rng, size) for size in sizes] for sizes in _SIZES]
    if spoiled:
        # Before the empty client: next to it in a group that is sorted by size.
        cohorts[0].insert(1, _spoiled(kind.client(rng, 1)))
    return cohorts


class _Runtimes(contextlib.ExitStack):
    """Runtimes that run, each started at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Way, Any] = {}

    def get(self, way: Way) -> Any:
        if way not in self._running:
            options = RuntimeOptions(client_mode=way.client_mode, max_clients_in_step=_GROUP)
            make = _RuntimeOfLanes if way.runtime == "cohort" else RUNTIMES[way.runtime]
            try:
                self._running[way] = self.enter_context(make(options))
            except UserError as e:
                pytest.skip(str(e))
        return self._running[way]


class _RuntimeOfLanes(CohortRuntime):
    """A cohort runtime whose number of lanes can change, so that all of them share a trace."""

    lanes: Optional[Lanes] = None

    def running_lanes(self) -> Lanes:
        return super().running_lanes() if self.lanes is None else self.lanes

    @contextlib.contextmanager
    def with_lanes(self, num_lanes: int) -> Iterator[None]:
        self.lanes = Lanes(["/device:CPU:0"], num_lanes)
        try:
            yield
        finally:
            self.lanes.close()
            self.lanes = None


@pytest.fixture(scope="module")
def runtimes() -> Iterator[_Runtimes]:
    with _Runtimes() as running:
        yield running


class _Rounds:
    """Rounds of a combination, in TFF and in every other way; each is prepared once."""

    def __init__(self, tff_runtime: Any, runtimes: _Runtimes, combination: Combination) -> None:
        self._runtimes = runtimes
        self._kind = _KINDS[combination.kind]
        self._algorithm = ALGORITHMS[combination.algorithm](self._kind.model(), _DOMAINS, _PARAMS)
        self._aggregation = AGGREGATIONS[combination.aggregation](_BOUNDS)
        self._trainings: dict[Way, Any] = {}
        self._cohorts = _cohorts(self._kind, spoiled=self._kind.has_real_inputs)
        self.expected = self.run(tff_runtime.training(self._algorithm, self._aggregation))

    def training(self, way: Way) -> Any:
        if way not in self._trainings:
            runtime = self._runtimes.get(way)
            self._trainings[way] = runtime.training(self._algorithm, self._aggregation)
        return self._trainings[way]

    def run(self, training: Any) -> Any:
        """Returns the last state and the metrics of each round."""
        return run_rounds(training, self._cohorts)

    @property
    def initial_weights(self) -> Any:
        return self._algorithm.initialize().weights


def _combinations() -> list[Combination]:
    """All of the first kind of model; of the others one of each aggregation.

    With TFF_AGNOSTIC_ALL_COMBINATIONS in the environment: all of all kinds, in many minutes more.
    """
    if _ALL in os.environ:
        parts = itertools.product(_KINDS, ALGORITHMS, AGGREGATIONS)
        return [Combination(algorithm, aggregation, kind) for kind, algorithm, aggregation in parts]
    return [
        Combination(algorithm, aggregation, kind)
        for k, kind in enumerate(_KINDS)
        for j, aggregation in enumerate(AGGREGATIONS)
        for algorithm in (ALGORITHMS if k == 0 else [_algorithm_of(k, j)])
    ]


def _algorithm_of(kind: int, aggregation: int) -> str:
    """The first algorithm with one aggregation, the others in turn with the rest."""
    first, *others = ALGORITHMS
    number, is_not_first = divmod(kind + aggregation, len(AGGREGATIONS))
    return others[number % len(others)] if is_not_first else first


_COMBINATIONS = _combinations()


@pytest.fixture(scope="module")
def rounds(request, tff_runtime, runtimes) -> _Rounds:
    return _Rounds(tff_runtime, runtimes, request.param)


# Of one combination after the other, so that its ways share what is prepared.
_RUNS = [
    pytest.param(combination, way, id=f"{_name(combination)}-{_name(way)}")
    for combination in _COMBINATIONS
    for way in _WAYS
    if _runs(way, combination)
]


def test_every_part_and_the_pairs_that_matter_appear():
    runs = [run.values for run in _RUNS]
    met = {pair for c, way in runs for pair in itertools.combinations((*c, *way), 2)}
    wanted = [
        *itertools.product(AGGREGATIONS, _KINDS),
        *itertools.product(ALGORITHMS, AGGREGATIONS),
        *((kind, mode) for kind in _KINDS for mode in _MODES if _can_run(Way("", mode), kind)),
        *itertools.product(ALGORITHMS, _MODES),
        *((r, mode) for r in RUNTIMES if r != "tff" for mode in _MODES),
    ]
    assert set(wanted) <= met


@pytest.mark.parametrize(("rounds", "way"), _RUNS, indirect=["rounds"], scope="module")
def test_rounds_are_those_of_tff_and_lanes_change_no_bit(rounds, runtimes, way):
    runtime, training = runtimes.get(way), rounds.training(way)
    state, metrics = rounds.run(training)
    expected_state, expected_metrics = rounds.expected
    _assert_equal_numbers(state, expected_state)
    for found, expected in zip(metrics, expected_metrics):
        _assert_equal_numbers(found, expected)
    # There was something to agree on.
    for w, w_0 in zip(state.weights.trainable, rounds.initial_weights.trainable):
        assert np.any(w != np.asarray(w_0))
    if isinstance(runtime, _RuntimeOfLanes):
        for num_lanes in (1, 2, 4):
            with runtime.with_lanes(num_lanes):
                assert_identical(rounds.run(training), (state, metrics))


def _evaluated() -> list[tuple[str, str]]:
    """Every aggregation of the first kind of model, one of each of the others."""
    return [
        (aggregation, kind)
        for k, kind in enumerate(_KINDS)
        for j, aggregation in enumerate(AGGREGATIONS)
        if k == 0 or k % len(AGGREGATIONS) == j or _ALL in os.environ
    ]


@pytest.mark.parametrize(("aggregation", "kind"), _evaluated())
def test_evaluations_are_those_of_tff(tff_runtime, runtimes, aggregation, kind):
    model = _KINDS[kind].model()
    rng = np.random.default_rng(5)
    weights = ModelWeights(
        [
            w + rng.normal(size=w.shape, scale=0.3).astype(w.dtype)
            for w in model.initial_weights.trainable
        ],
        model.initial_weights.non_trainable,
    )
    can_be_seen = _KINDS[kind].has_real_inputs and not _KINDS[kind].has_relu
    cohorts = _cohorts(_KINDS[kind], spoiled=can_be_seen)
    arguments = (model, _DOMAINS, AGGREGATIONS[aggregation](_BOUNDS))
    evaluate = tff_runtime.evaluation(*arguments)
    expected = [evaluate(weights, cohort) for cohort in cohorts]
    for way in _WAYS:
        if _can_run(way, kind) and (way.runtime == "cohort" or kind == _FIRST_KIND):
            evaluate = runtimes.get(way).evaluation(*arguments)
            for cohort, of_cohort in zip(cohorts, expected):
                _assert_equal_numbers(evaluate(weights, cohort), of_cohort)


def _assert_equal_numbers(actual: Any, expected: Any) -> None:
    """Integers are equal; real numbers agree up to what the order of a sum may change."""
    tf.nest.assert_same_structure(actual, expected, check_types=False)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if np.issubdtype(e.dtype, np.floating):
            scale = max(_FLOOR, np.max(np.abs(e), initial=0))
            np.testing.assert_allclose(a, e, rtol=0, atol=_TOLERANCE * scale)
        else:
            np.testing.assert_array_equal(a, e)
