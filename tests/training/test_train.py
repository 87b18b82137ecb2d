"""Training on arrays in memory: problems, the loop of rounds, observers and evaluation."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.support.comparing import assert_identical
from tests.support.options import make_options
from tff_agnostic import (
    AgnosticFedAvgOptions,
    Observer,
    agnostic_fed_avg,
    classification,
    evaluate,
    regression,
    train,
)
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, fed_avg
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.computations import PlainSum
from tff_agnostic.data.sampling import Cohorts
from tff_agnostic.training.divergence import Diverged

_KEY = tuple(range(4))


def _network() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2)])


def _line() -> tf.keras.Model:
    zeros = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input([2]), zeros])


def _arrays(labels: str = "classes") -> dict[str, dict[str, np.ndarray]]:
    """Returns clients' arrays with NumPy's default types, float64 and int64."""
    rng = np.random.default_rng(0)
    arrays = {}
    for k in range(6):
        x, domain = rng.normal(size=(5 + k, 2)), k % 2
        y = x[:, domain] > 0 if labels == "classes" else x @ [1.0, -2.0] + domain
        y = y.astype(int) if labels == "classes" else y
        arrays[f"client {k}"] = {"x": x, "y": y, "domain_id": np.full(5 + k, domain)}
    return arrays


@pytest.fixture(scope="module")
def parts():
    problem, clients = classification(_network, _arrays(), ["even", "odd"], clients_per_round=3)
    return agnostic_fed_avg(problem, AgnosticFedAvgOptions(window=2)), clients


@pytest.fixture(scope="module")
def training(parts, streaming_runtime):
    """`train` with the parts and cohorts of three clients."""
    return functools.partial(train, *parts, clients_per_round=3, runtime=streaming_runtime)


class _Recorder(Observer):
    """An observer that records its calls, and stops after a given round or fails in it."""

    def __init__(self, seen, name="", stop_after=0, fail_in=0):
        self.seen, self.name = seen, name
        self._stop_after, self._fail_in = stop_after, fail_in

    def begin(self, training, state, last):
        self.seen.append((self.name, "begin", int(state.round_num), last))

    def after_round(self, finished):
        self.seen.append((self.name, finished.num, int(finished.state.round_num)))
        if finished.num == self._fail_in:
            raise ZeroDivisionError
        finished.stop = finished.stop or finished.num == self._stop_after

    def end(self, state, error):
        self.seen.append((self.name, "end", int(state.round_num), type(error).__name__))


def test_resumed_training_equals_training_in_one_call(training):
    whole = training(5)
    first = training(2)
    second = training(5, state=first.state)
    assert_identical(second.state, whole.state)
    assert [len(t.reports) for t in (whole, first, second)] == [5, 2, 3]


def test_training_on_full_batches_equals_gradient_descent(streaming_runtime):
    arrays = _arrays(labels="numbers")
    problem, clients = regression(_line, arrays, ["even", "odd"], clients_per_round=6)
    options = make_options(
        FedAvgOptions, client_learning_rate=0.1, client_batch_size=100, client_normalizer="batch"
    )
    trained = train(
        fed_avg(problem, options), clients, 4, clients_per_round=6, runtime=streaming_runtime
    )
    x = np.concatenate([client["x"] for client in arrays.values()])
    y = np.concatenate([client["y"] for client in arrays.values()])
    w = np.zeros(2)
    for _ in range(4):
        w -= 0.1 * 2 * x.T @ (x @ w - y) / len(y)
    np.testing.assert_allclose(trained.models["model"].trainable[0][:, 0], w, rtol=1e-5)
    report = evaluate(problem, trained.models["model"], arrays, runtime=streaming_runtime)
    odd = np.concatenate([arrays[f"client {k}"]["domain_id"] for k in range(6)]) == 1
    errors = x @ w - y
    measured = report.domains["odd"].measures
    assert measured["loss"].value == pytest.approx(np.mean(errors[odd] ** 2), rel=1e-4)
    absolute = measured["mean_absolute_error"].value
    assert absolute == pytest.approx(np.mean(np.abs(errors[odd])), rel=1e-4)
    overall = report.overall.measures["root_mean_squared_error"].value
    assert overall == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-4)


def test_observers_see_rounds_and_end_in_reverse_order(training):
    seen = []
    observers = [_Recorder(seen, "a"), _Recorder(seen, "b", stop_after=2)]
    trained = training(9, observers=observers)
    rounds = [(name, num, num) for num in (1, 2) for name in "ab"]
    begun = [(name, "begin", 0, 9) for name in "ab"]
    assert seen == [*begun, *rounds, ("b", "end", 2, "NoneType"), ("a", "end", 2, "NoneType")]
    assert int(trained.state.round_num) == 2


def test_observers_receive_the_error_at_the_end(training):
    seen = []
    observers = [_Recorder(seen, "a", fail_in=2), _Recorder(seen, "b")]
    with pytest.raises(ZeroDivisionError):
        training(9, observers=observers)
    assert seen[-3:] == [
        ("a", 2, 2),
        ("b", "end", 2, "ZeroDivisionError"),
        ("a", "end", 2, "ZeroDivisionError"),
    ]


def test_private_sums_need_an_account_and_secret_cohorts(parts, training):
    options = PRIVACIES["central"].options(noise_multiplier=1.0)
    noise = PRIVACIES["central"].build("central", PlainSum(), options, NoiseFacts(3.0, _KEY, 1.0))
    with pytest.raises(OptionError, match=r"^cohorts: expected cohorts that are drawn with the"):
        training(1, aggregation=noise)

    def cohorts(state):
        return Cohorts(lambda t: list(parts[1].client_ids))

    with pytest.raises(OptionError, match=r"^observers: expected an observer that accounts for"):
        training(
            1,
            aggregation=noise,
            cohorts=cohorts,
            observers=[_Recorder([])],
        )


def test_diverged_model_raises_error(streaming_runtime):
    arrays = _arrays(labels="numbers")
    problem, clients = regression(_line, arrays, ["even", "odd"], clients_per_round=6)
    options = make_options(FedAvgOptions, client_learning_rate=1e30, client_epochs=3)
    with pytest.raises(Diverged, match=r"lower the learning rate of the clients or of the server$"):
        train(fed_avg(problem, options), clients, 9, clients_per_round=6, runtime=streaming_runtime)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.array([0, 1, 2])}, r"client 0: expected labels from 0 to 1, found 2 in row 2"),
        ({"y": np.array([0.0, 1, 1])}, r"client 0: y: expected int32 values, found float32"),
        ({"domain_id": np.array([0, 0, 2])}, r"client 0: expected domain ids from 0 to 1, found 2"),
    ],
)
def test_rejects_invalid_client_arrays(changed, message):
    good = {"x": np.zeros([3, 2]), "y": np.array([0, 1, 1]), "domain_id": np.zeros(3, int)}
    clients = {"client 0": {**good, **changed}, "a client": good}
    with pytest.raises(UserError, match=f"^{message}"):
        classification(_network, clients, ["even", "odd"])


def test_evaluation_rejects_invalid_arrays(parts, streaming_runtime):
    algorithm, _ = parts
    weights = algorithm.problem.model.initial_weights
    for name, what in (("domain_id", "domain ids"), ("y", "labels")):
        wrong = {"far": {**_arrays()["client 0"], name: np.full(5, 2)}}
        with pytest.raises(UserError, match=rf"^far: expected {what} from 0 to 1, found 2"):
            evaluate(algorithm.problem, weights, wrong, runtime=streaming_runtime)


def test_problem_without_clients_raises():
    with pytest.raises(UserError, match=r"^clients: expected at least one client, found none"):
        classification(_network, {}, ["even", "odd"])
