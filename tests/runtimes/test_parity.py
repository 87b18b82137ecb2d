"""The cohort runtime's results equal the TFF runtime's, for algorithms, models and client modes.

Clients have different sizes, a single example or no examples. If inputs are floats, a client has
NaN. Batch sizes do not divide the clients' sizes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import CASES, build
from tests.support.clients import NUM_DOMAINS
from tests.support.combinations import FACTORS
from tests.support.comparing import assert_identical
from tests.support.marks import usually
from tests.support.model_kinds import KINDS, ModelKind
from tests.support.options import make_options, options_in_mode
from tests.support.rounds import run_rounds
from tff_agnostic.computations import AGGREGATIONS, SecureSumOptions
from tff_agnostic.models.model import Examples, ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.devices import DeviceThreads

pytestmark = pytest.mark.slow

_OPTIONS = {"secure": make_options(SecureSumOptions, limit_examples=20, secure_min_clients=1)}
# Tolerances are relative to an array's largest value, or to this number if that is larger.
_FLOOR = 0.01
# Sizes of the clients in each cohort; the last cohort is empty.
_SIZES = ((9, 0, 1, 14, 6), (3, 1, 11), (2, 8, 0, 5, 4, 1), ())
# Maximum number of vectorised clients, so small that a cohort has several shards.
_GROUP = 2

_MODES = ("streamed", "vectorised")
# (algorithm, aggregation, kind of model, client modes), with every aggregation and kind of model.
# TFF compiles for seconds per run, and secure sums again for each mode, so secure sums have one
# mode. `test_combinations.py` tests logistic regression with the other algorithms.
_ALL_RUNS = [
    ("delta_fl", "plain", "logistic", _MODES),
    ("agnostic_fed_avg", "secure", "logistic", ("vectorised",)),
    ("fed_avg", "plain", "frozen", _MODES),
    ("q_ffl", "secure", "dict_of_inputs", ("streamed",)),
    ("fed_prox", "plain", "embedding", ("vectorised",)),
    ("agnostic_fed_avg", "plain", "next_word", ("streamed",)),
    *((name, "plain", "logistic", _MODES) for name in CASES if name not in FACTORS["algorithm"]),
    ("fed_avg", "plain", "dropout", _MODES),
    ("agnostic_fed_avg", "secure", "frozen", ("vectorised",)),
    ("agnostic_fed_avg", "plain", "convolutional", ("streamed", "vectorised")),
]
# Runs of usual tests; the runs that are only in `_ALL_RUNS` are nightly.
_USUAL_RUNS = [
    ("agnostic_fed_avg", "secure", "logistic", ("vectorised",)),
    ("delta_fl", "plain", "logistic", _MODES),
    ("fed_avg", "plain", "frozen", _MODES),
    ("agnostic_fed_avg", "plain", "next_word", ("streamed",)),
]
# Baselines of excess losses, some above and some below the losses.
_SETTINGS = {("agnostic_fed_avg", "secure"): {"lambda_baselines": (0.9, 0.0, 2.0)}}


class _LanesRuntime(CohortRuntime):
    """A cohort runtime with a variable number of lanes, which share its traces."""

    lanes: Optional[DeviceThreads] = None

    def running_lanes(self) -> DeviceThreads:
        return super().running_lanes() if self.lanes is None else self.lanes

    @contextlib.contextmanager
    def with_lanes(self, num_lanes: int) -> Iterator[None]:
        self.lanes = DeviceThreads(["/device:CPU:0"], num_lanes)
        try:
            yield
        finally:
            self.lanes.close()
            self.lanes = None


@pytest.fixture(scope="module")
def cohort_runtimes() -> Iterator[dict[str, _LanesRuntime]]:
    with contextlib.ExitStack() as stack:
        yield {
            mode: stack.enter_context(_LanesRuntime(options_in_mode(mode, _GROUP)))
            for mode in _MODES
        }


def _spoiled(client: dict[str, Any]) -> dict[str, Any]:
    x = tf.nest.map_structure(np.copy, client["x"])
    column = next(c for c in tf.nest.flatten(x) if c.dtype == np.float32)
    column[-1, 0] = np.nan
    return {**client, "x": x}


def _cohorts(kind: ModelKind, spoiled: bool) -> list[list[Examples]]:
    rng = np.random.default_rng(3)
    cohorts = [[kind.client(rng, size) for size in sizes] for sizes in _SIZES]
    if spoiled:
        # Groups are sorted by size, so the NaN client is next to the empty client.
        cohorts[0].insert(1, _spoiled(kind.client(rng, 1)))
    return cohorts


def _aggregation(name: str) -> Any:
    spec = AGGREGATIONS[name]
    return spec.build(_OPTIONS.get(name, spec.options()))


class _Rounds:
    """Rounds of an algorithm with a kind of model, to run in several runtimes."""

    def __init__(self, algorithm: str, aggregation: str, kind: str) -> None:
        self._kind = KINDS[kind]
        settings = _SETTINGS.get((algorithm, aggregation), {})
        self._algorithm = build(algorithm, model=self._kind.model(), **settings)
        self._aggregation = _aggregation(aggregation)
        self._cohorts = _cohorts(self._kind, spoiled=self._kind.has_real_inputs)

    def run(self, runtime: Any) -> Any:
        """Returns the last state and each round's report."""
        return run_rounds(self.training(runtime), self._cohorts)

    def training(self, runtime: Any) -> Any:
        return runtime.training(self._algorithm, self._aggregation)

    def have_trained(self, state: Any) -> bool:
        before = self._algorithm.main_model(self._algorithm.initialize())
        after = self._algorithm.main_model(state.algorithm)
        pairs = zip(after.trainable, before.trainable)
        fixed = zip(after.non_trainable, before.non_trainable)
        return all(np.any(w != np.asarray(w_0)) for w, w_0 in pairs) and all(
            np.asarray(w).tobytes() == np.asarray(w_0).tobytes() for w, w_0 in fixed
        )


@pytest.mark.nightly_cases("fed_avg-plain-frozen-modes2")
@pytest.mark.parametrize(
    ("algorithm", "aggregation", "kind", "modes"), usually(_USUAL_RUNS, _ALL_RUNS)
)
def test_rounds_equal_tff_with_any_lanes(
    tff_runtime, cohort_runtimes, algorithm, aggregation, kind, modes
):
    rounds = _Rounds(algorithm, aggregation, kind)
    expected_state, expected_reports = rounds.run(tff_runtime)
    assert rounds.have_trained(expected_state)
    for mode in modes:
        runtime = cohort_runtimes[mode]
        training = rounds.training(runtime)
        state, reports = run_rounds(training, rounds._cohorts)
        _assert_equal_numbers(state, expected_state, kind)
        for result, expected in zip(reports, expected_reports):
            _assert_equal_numbers(result, expected, kind)
        for num_lanes in (1, 4):
            with runtime.with_lanes(num_lanes):
                assert_identical(run_rounds(training, rounds._cohorts), (state, reports))


@pytest.mark.nightly_cases("secure-logistic")
@pytest.mark.parametrize(
    ("aggregation", "kind"),
    usually(
        [("secure", "logistic"), ("plain", "dict_of_inputs")],
        [
            ("plain", "logistic"),
            ("secure", "logistic"),
            ("plain", "dropout"),
            ("plain", "dict_of_inputs"),
            ("plain", "next_word"),
        ],
    ),
)
def test_evaluations_equal_tff_evaluations(tff_runtime, cohort_runtimes, aggregation, kind):
    model = KINDS[kind].model()
    rng = np.random.default_rng(5)
    weights = ModelWeights(
        [
            w + rng.normal(size=w.shape, scale=0.3).astype(w.dtype)
            for w in model.initial_weights.trainable
        ],
        model.initial_weights.non_trainable,
    )
    can_be_seen = KINDS[kind].has_real_inputs and not KINDS[kind].has_relu
    cohorts = _cohorts(KINDS[kind], spoiled=can_be_seen)
    arguments = (model, NUM_DOMAINS, _aggregation(aggregation))
    evaluate = tff_runtime.evaluation(*arguments)
    # Evaluate each cohort in one part, all cohorts in several parts, and no clients.
    wanted = [[cohort] for cohort in cohorts] + [cohorts, []]
    expected = [evaluate(weights, parts) for parts in wanted]
    for runtime in cohort_runtimes.values():
        evaluate = runtime.evaluation(*arguments)
        for parts, evaluated in zip(wanted, expected):
            _assert_equal_numbers(evaluate(weights, parts), evaluated, kind)


def _assert_equal_numbers(actual: Any, expected: Any, kind: str) -> None:
    """Checks that integers are equal, and floats within the tolerance of the kind of model."""
    tf.nest.assert_same_structure(actual, expected, check_types=False)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if np.issubdtype(e.dtype, np.floating):
            scale = max(_FLOOR, np.max(np.abs(e), initial=0))
            np.testing.assert_allclose(a, e, rtol=0, atol=KINDS[kind].tolerance * scale)
        else:
            np.testing.assert_array_equal(a, e)
