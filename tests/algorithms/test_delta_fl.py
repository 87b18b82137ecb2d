"""Delta-FL equals its reference, which was written from the paper without the package's code.

The twelve random rounds include ties, clients without examples and clients with NaN inputs.
"""

import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.random_rounds import COHORTS, W_0, at_start
from tests.algorithms.references import delta_fl as reference
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round
from tests.algorithms.references.softmax import SOFTMAX, mean_loss
from tests.support import golden
from tests.support.algorithms import build
from tests.support.clients import NUM_DOMAINS, make_client, random_client
from tests.support.comparing import assert_all_close, assert_identical
from tff_agnostic.computations import Algorithm, PlainSum
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.classifiers import emnist_cnn

# The width of the smoothed objective.
_NU = 0.3
_SGD = LocalSgd(eta=0.2, epochs=2, batch_size=4, divisor="batch")


class _Case(NamedTuple):
    theta: float
    threshold: str = "survey"
    boundary: Optional[str] = "exact"
    weighting: str = "examples"

    def build(self, **settings: Any) -> Algorithm:
        given = {"theta": (self.theta,), "client_learning_rate": _SGD.eta, **settings}
        if self.boundary is not None:
            given["boundary"] = self.boundary + f":width={_NU}" * (self.boundary == "smooth")
        return build(
            "delta_fl",
            threshold=self.threshold,
            client_weighting=self.weighting,
            client_epochs=_SGD.epochs,
            client_batch_size=_SGD.batch_size,
            client_normalizer=_SGD.divisor,
            client_shuffle=False,
            **given,
        )

    def round(self, w: Any, remembered: Any, cohort: Any) -> tuple[Any, Any]:
        """Returns the reference's next weights, and the threshold that it remembers."""
        how = (self.theta, _SGD, self.weighting)
        if self.boundary == "smooth":
            return reference.smoothed_round(SOFTMAX, w, cohort, *how, _NU), None
        if self.threshold == "survey":
            return reference.survey_round(SOFTMAX, w, cohort, *how, self.boundary), None
        if self.threshold == "lagged":
            return reference.lagged_round(SOFTMAX, w, remembered, cohort, *how, self.boundary)
        return reference.tracked_round(SOFTMAX, w, remembered, cohort, *how)


_CASES = {
    "survey .3, equal clients": _Case(0.3, weighting="equal"),
    "survey .5, smooth": _Case(0.5, boundary="smooth"),
    "lagged .3, equal clients, as printed": _Case(0.3, "lagged", "paper", "equal"),
    "tracked .1, equal clients": _Case(0.1, "tracked", None, "equal"),
}


def _assert_follows(training: Any, *cases: _Case) -> None:
    """Compares each conformity level's rounds with its case's reference."""
    state = training.initialize()
    levels = tuple(level._replace(weights=W_0) for level in state.algorithm.levels)
    state = state._replace(algorithm=state.algorithm._replace(levels=levels))
    expected: list[tuple[Any, Any]]
    expected = [([v.astype(np.float64) for v in W_0.trainable], None) for _ in cases]
    for cohort in COHORTS:
        expected = [case.round(*before, cohort) for case, before in zip(cases, expected)]
        state, _ = training.next(state, cohort)
        for level, (w, _) in zip(state.algorithm.levels, expected, strict=True):
            assert_all_close(level.weights.trainable, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", _CASES)
def test_rounds_match_reference(streaming_runtime, case):
    training = streaming_runtime.training(_CASES[case].build(), PlainSum())
    _assert_follows(training, _CASES[case])


@pytest.mark.slow
def test_levels_of_a_family_equal_levels_trained_alone(streaming_runtime):
    levels = (0.1, 0.5, 0.9)
    algorithm = _Case(levels[0]).build(theta=levels)
    training = streaming_runtime.training(algorithm, PlainSum())
    assert list(algorithm.models(training.initialize().algorithm)) == [
        "conformity_0.1",
        "conformity_0.5",
        "conformity_0.9",
    ]
    _assert_follows(training, *map(_Case, levels))


@pytest.mark.nightly
def test_family_of_networks_runs_in_streamed_mode(streaming_runtime):
    """The network's graph is so large that TensorFlow rewrites sums in loops; see `fold_in`."""
    algorithm = build(
        "delta_fl", model=emnist_cnn(10, 0), theta=(0.1, 0.5, 0.8, 1.0), threshold="survey"
    )
    training = streaming_runtime.training(algorithm, PlainSum())
    rng = np.random.default_rng(0)
    state = training.initialize()
    for _ in range(3):
        clients = [
            make_client(rng.random((n, 28, 28, 1)), np.zeros(n), rng.integers(10, size=n))
            for n in (6, 9, 1, 4, 15, 20)
        ]
        state, report = training.next(state, clients)
    assert report["clients"]["non_finite"] == 0


def _quickly_learned_cohorts() -> list[list[dict[str, np.ndarray]]]:
    """Returns cohorts whose losses soon fall below a tenth of the first round's mean."""
    rng = np.random.default_rng(8)
    cohorts = []
    for _ in range(12):
        labels = [rng.integers(3, size=size) for size in (9, 12, 5)]
        # The model learns the first clients faster than the others.
        clients = [make_client(np.eye(4)[y] * (6 - 2 * k), y, y) for k, y in enumerate(labels)]
        cohorts.append(clients)
    return cohorts


def _weights_after_rounds(runtime: Any, name: str, **settings: Any) -> Any:
    algorithm = build(name, client_epochs=2, client_batch_size=4, **settings)
    training = runtime.training(algorithm, PlainSum())
    state = training.initialize()
    for cohort in _quickly_learned_cohorts():
        state, _ = training.next(state, cohort)
    return algorithm.main_model(state.algorithm).trainable


@pytest.mark.slow
def test_level_1_equals_fed_avg_bit_for_bit(streaming_runtime):
    """At level 1 no client is below the threshold, even after losses fall to a tenth."""
    settings = {"theta": (1.0,), "threshold": "tracked"}
    actual = _weights_after_rounds(streaming_runtime, "delta_fl", **settings)
    assert_identical(actual, _weights_after_rounds(streaming_runtime, "fed_avg"))


@pytest.mark.slow
def test_lowest_level_trains_the_worst_client(streaming_runtime):
    algorithm = _Case(1e-4).build()
    training = streaming_runtime.training(algorithm, PlainSum())
    cohort = COHORTS[0]
    losses = [mean_loss(SOFTMAX, W_0.trainable, client) for client in cohort]
    state, report = training.next(at_start(training, algorithm), cohort)
    worst = cohort[int(np.argmax(losses))]
    expected = fed_avg_round(SOFTMAX, [v.astype(np.float64) for v in W_0.trainable], [worst], _SGD)
    assert_all_close(state.algorithm.levels[0].weights.trainable, expected, rtol=1e-5, atol=1e-6)
    assert report["clients"]["contributed"] == 1
    assert report["clients"]["zero_weight"] == len(cohort) - 1
    # The threshold is the centre of a histogram bin, which is 2.7% wide.
    level = report["levels"]["conformity_0.0001"]
    assert float(level["threshold"]) == pytest.approx(max(losses), rel=0.014)
    assert float(level["kept_share"]) == pytest.approx(1e-4, rel=1e-5)


@pytest.mark.slow
def test_tracked_threshold_trains_the_levels_fraction_of_clients(streaming_runtime):
    algorithm = _Case(0.3, "tracked", None, "equal").build(client_learning_rate=1e-4)
    training = streaming_runtime.training(algorithm, PlainSum())
    rng = np.random.default_rng(1)
    cohort = [random_client(rng, 6, range(NUM_DOMAINS)) for _ in range(20)]
    state, shares = at_start(training, algorithm), []
    for _ in range(60):
        state, report = training.next(state, cohort)
        shares.append(float(report["levels"]["conformity_0.3"]["kept_share"]))
    assert shares[:2] == [1.0, 1.0]
    assert np.mean(shares[-20:]) == pytest.approx(0.3, abs=0.05)
    # Had the threshold started too high, no client would train for 35 rounds.
    assert min(shares) > 0.1


@pytest.mark.slow
def test_clients_below_the_threshold_take_no_step(streaming_runtime):
    steps = []

    def counted(weights: Any, x: Any, training: bool, seed: Any) -> Any:
        scores = model.predict(weights, x, training, seed)
        if not training:
            return scores
        with tf.control_dependencies(
            [tf.numpy_function(lambda: steps.append(1) or 0, [], tf.int64)]
        ):
            return tf.identity(scores)

    model = logistic_regression(4, NUM_DOMAINS)
    algorithm = _Case(1e-4).build(model=dataclasses.replace(model, predict=counted))
    training = streaming_runtime.training(algorithm, PlainSum())
    cohort = COHORTS[0]
    training.next(at_start(training, algorithm), cohort)
    losses = [mean_loss(SOFTMAX, W_0.trainable, client) for client in cohort]
    worst = len(cohort[int(np.argmax(losses))]["y"])
    assert len(steps) == _SGD.epochs * -(-worst // _SGD.batch_size)


@golden.values
def test_rejects_invalid_levels(case):
    return golden.refusal(build, "delta_fl", theta=case)


@pytest.mark.slow
def test_held_out_examples_only_choose_clients(streaming_runtime):
    """A client measures its loss on half of its examples and trains on the other half."""
    algorithm = build("delta_fl", theta=(0.01,), measured_share=0.5)
    training = streaming_runtime.training(algorithm, PlainSum())
    client = {key: np.concatenate([column] * 8) for key, column in COHORTS[0][0].items()}
    state, report = training.next(at_start(training, algorithm), [client])
    counts = report["client_work"]["train"]
    assert sum(counts["num_kept_out"]) == sum(counts["num_examples"]) == len(client["y"]) / 2
    assert report["levels"]["conformity_0.01"]["kept_share"] > 0
    # A client with a single example has none to measure its loss on, so it has weight 0.
    single = {key: column[:1] for key, column in client.items()}
    alone, report = training.next(at_start(training, algorithm), [single])
    assert report["clients"]["zero_weight"] == 1
    assert_identical(alone.algorithm.levels[0].weights.trainable, W_0.trainable)
    assert not np.array_equal(state.algorithm.levels[0].weights.trainable[0], W_0.trainable[0])
