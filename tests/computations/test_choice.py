"""Clients' choices from a family of models equal NumPy's, with the package's holdout split."""

import numpy as np
import pytest

from tests.algorithms.references.softmax import SOFTMAX
from tests.support.clients import make_client, random_client, single
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.models import random_weights
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.domain_losses import Holdout
from tff_agnostic.computations.evaluation import ChoiceOutput, choice_measurement
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights

pytestmark = pytest.mark.slow

_DOMAINS, _MODELS = 3, 3
_MODEL = logistic_regression(4, 3)
_HOLDOUT = Holdout(0.4, seed=3)


_FAMILY = tuple(map(random_weights, range(_MODELS)))


def _clients() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    sizes = [300, 2, 3, *rng.integers(5, 40, size=20)]
    return [random_client(rng, int(n), rng.permutation(_DOMAINS)[:2]) for n in sizes]


def _split(client: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns the examples by which a client chooses a model, and its other examples."""
    parts = [
        [part.order.numpy(), int(part.num_examples)] for part in _HOLDOUT.split(single(client))
    ]
    return [{k: v[order[:n]] for k, v in client.items()} for order, n in parts]


def _measure(weights: ModelWeights, examples: dict[str, np.ndarray]) -> tuple:
    w, x = [w.astype(np.float64) for w in weights.trainable], examples["x"]
    correct = (x @ w[0] + w[1]).argmax(axis=1) == examples["y"]
    return SOFTMAX.losses(w, x, examples["y"]), correct


def _expected(clients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns each client's values on the examples by which it does not choose a model."""
    choices, losses, shares, counts = [], [], [], []
    for client in clients:
        to_choose_by, rest = _split(client)
        counts.append(len(rest["y"]))
        choices.append(np.argmin([_measure(w, to_choose_by)[0].mean() for w in _FAMILY]))
        measured = [_measure(w, rest) for w in _FAMILY]
        losses.append([m[0].mean() for m in measured])
        shares.append([m[1].mean() for m in measured])
    return {
        "choices": np.array(choices),
        "losses": np.array(losses),
        "shares": np.array(shares),
        "counts": np.array(counts),
    }


@pytest.fixture(scope="module")
def choose(streaming_runtime):
    measurement = choice_measurement(_MODEL, _DOMAINS, _MODELS, _HOLDOUT)
    return streaming_runtime.measurement(measurement, PlainSum())


def test_clients_choose_the_model_with_lowest_loss(choose):
    clients = [c for c in _clients() if min(len(p["y"]) for p in _split(c)) > 0]
    actual, expected = choose(_FAMILY, [clients]).output, _expected(clients)
    rows = np.arange(len(clients))
    np.testing.assert_array_equal(
        actual.num_choices, np.bincount(expected["choices"], minlength=_MODELS)
    )
    assert len(set(expected["choices"])) == _MODELS
    picks = {
        "chosen": (actual.chosen, expected["choices"], expected["choices"]),
        "in hindsight": (
            actual.in_hindsight,
            expected["losses"].argmin(axis=1),
            expected["shares"].argmax(axis=1),
        ),
        **{
            str(k): (output, np.full(len(rows), k), rows * 0 + k)
            for k, output in enumerate(actual.models)
        },
    }
    for name, (output, by_loss, by_share) in picks.items():
        over = output.over_clients
        assert over["loss"].num_clients[-1] == len(clients)
        np.testing.assert_allclose(
            over["loss"].total[-1], expected["losses"][rows, by_loss].sum(), rtol=1e-5, err_msg=name
        )
        np.testing.assert_allclose(
            over["accuracy"].total[-1],
            expected["shares"][rows, by_share].sum(),
            rtol=1e-5,
            err_msg=name,
        )
        assert output.sums.counts.sum() == expected["counts"].sum()


def test_clients_choose_first_of_equal_models(choose):
    actual = choose((_FAMILY[0],) * _MODELS, [_clients()]).output
    np.testing.assert_array_equal(actual.num_choices[1:], 0)
    assert_identical(actual.chosen, actual.models[0])
    assert_identical(actual.in_hindsight, actual.models[0])


def _assert_nearly_equal(actual: ChoiceOutput, expected: ChoiceOutput) -> None:
    # Another number of clients can change the order of float sums.
    assert_all_close(actual._replace(clients=()), expected._replace(clients=()), rtol=1e-6)


def test_clients_without_choice_are_only_counted(choose):
    clients = _clients()
    empty, single = make_client(np.zeros([0, 4]), []), make_client(np.ones([1, 4]), [1])
    spoiled = make_client(np.full([10, 4], np.nan), [0] * 10)
    without, actual = (choose(_FAMILY, [c]).output for c in (clients, [*clients, empty, single]))
    assert actual.clients["too_few"] == without.clients["too_few"] + 2
    _assert_nearly_equal(actual, without)
    actual = choose(_FAMILY, [[*clients, spoiled]]).output
    assert actual.clients["non_finite"] == 1
    _assert_nearly_equal(actual, without)


def test_clients_with_diverged_model_do_not_choose(choose):
    """Such clients count as not finite; they do not choose another model."""
    infinite = ModelWeights([np.full([4, 3], np.inf, np.float32), np.zeros([3], np.float32)], [])
    actual = choose((infinite, *_FAMILY[1:]), [_clients()]).output
    assert actual.clients["chose"] == 0
    assert actual.clients["non_finite"] + actual.clients["too_few"] == len(_clients())
