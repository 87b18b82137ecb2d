"""What clients would choose from a family of models, against NumPy; the split is taken as it is."""

import numpy as np
import pytest

from tests.computations.harness import (
    assert_all_close,
    assert_identical,
    make_client,
    random_client,
    single,
)
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.domain_losses import Holdout
from tff_agnostic.computations.evaluation import ChoiceOutput, measurement_of_choice
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes import CohortOptions, CohortRuntime

pytestmark = pytest.mark.slow

_DOMAINS, _MODELS = 3, 3
_MODEL = logistic_regression(4, 3)
_HOLDOUT = Holdout(0.4, seed=3)


def _weights(seed: int) -> ModelWeights:
    rng = np.random.default_rng(seed)
    return ModelWeights(
        [rng.normal(size=[4, 3]).astype(np.float32), rng.normal(size=[3]).astype(np.float32)], []
    )


_FAMILY = tuple(map(_weights, range(_MODELS)))


def _clients() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    sizes = [300, 2, 3, *rng.integers(5, 40, size=20)]
    return [random_client(rng, int(n), rng.permutation(_DOMAINS)[:2]) for n in sizes]


def _parts_of(client: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns the examples that a client chooses by, and the others."""
    parts = [
        [part.order.numpy(), int(part.num_examples)] for part in _HOLDOUT.split(single(client))
    ]
    return [{k: v[order[:n]] for k, v in client.items()} for order, n in parts]


def _measure(weights: ModelWeights, examples: dict[str, np.ndarray]) -> tuple:
    matrix, offsets = (w.astype(np.float64) for w in weights.trainable)
    scores = examples["x"] @ matrix + offsets
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), examples["y"]]
    return losses, scores.argmax(axis=1) == examples["y"]


def _expected(clients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns values of each client on the examples that it does not choose by."""
    choices, losses, shares, counts = [], [], [], []
    for client in clients:
        to_choose_by, rest = _parts_of(client)
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


@pytest.fixture(scope="module", params=usually(["streamed"], ["tff", "streamed", "vectorised"]))
def runtime(request):
    if request.param == "tff":
        yield request.getfixturevalue("tff_runtime")
        return
    with CohortRuntime(CohortOptions(client_mode=request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def measurement():
    return measurement_of_choice(_MODEL, _DOMAINS, _MODELS, _HOLDOUT)


@pytest.fixture(scope="module")
def choose(runtime, measurement):
    return runtime.measurement(measurement, PlainSum())


def test_clients_choose_by_a_share_and_are_measured_on_the_rest(choose):
    clients = [c for c in _clients() if min(len(p["y"]) for p in _parts_of(c)) > 0]
    found, expected = choose(_FAMILY, [clients]).output, _expected(clients)
    rows = np.arange(len(clients))
    np.testing.assert_array_equal(
        found.num_choices, np.bincount(expected["choices"], minlength=_MODELS)
    )
    assert len(set(expected["choices"])) == _MODELS
    picks = {
        "chosen": (found.chosen, expected["choices"], expected["choices"]),
        "in hindsight": (
            found.in_hindsight,
            expected["losses"].argmin(axis=1),
            expected["shares"].argmax(axis=1),
        ),
        **{str(k): (of, np.full(len(rows), k), rows * 0 + k) for k, of in enumerate(found.models)},
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


def test_of_equal_models_the_first_is_chosen(choose):
    found = choose((_FAMILY[0],) * _MODELS, [_clients()]).output
    np.testing.assert_array_equal(found.num_choices[1:], 0)
    assert_identical(found.chosen, found.models[0])
    assert_identical(found.in_hindsight, found.models[0])


def _assert_same_but_for_rounding(found: ChoiceOutput, expected: ChoiceOutput) -> None:
    # A larger group may add in another order.
    assert_all_close(found._replace(clients=()), expected._replace(clients=()), rtol=1e-6)


def test_who_cannot_choose_is_counted_and_adds_nothing_else(choose):
    clients = _clients()
    empty, single = make_client(np.zeros([0, 4]), []), make_client(np.ones([1, 4]), [1])
    spoiled = make_client(np.full([10, 4], np.nan), [0] * 10)
    without, found = (choose(_FAMILY, [c]).output for c in (clients, [*clients, empty, single]))
    assert found.clients["too_few"] == without.clients["too_few"] + 2
    _assert_same_but_for_rounding(found, without)
    found = choose(_FAMILY, [[*clients, spoiled]]).output
    assert found.clients["non_finite"] == 1
    _assert_same_but_for_rounding(found, without)


def test_a_model_that_diverged_is_no_ones_choice_to_hide(choose):
    """It would be the smallest loss of nobody; clients that it fails are counted instead."""
    infinite = ModelWeights([np.full([4, 3], np.inf, np.float32), np.zeros([3], np.float32)], [])
    found = choose((infinite, *_FAMILY[1:]), [_clients()]).output
    assert found.clients["chose"] == 0
    assert found.clients["non_finite"] + found.clients["too_few"] == len(_clients())


@pytest.mark.nightly_cases("streamed")
def test_secure_sums_give_the_same(cohort_runtime, choose, measurement):
    aggregation = SecureSum(make_options(SecureSumOptions, limit_examples=400, limit_loss=20.0))
    secure = cohort_runtime.measurement(measurement, aggregation)(_FAMILY, [_clients()])
    plain = choose(_FAMILY, [_clients()]).output
    assert not any(secure.clipped.values())
    np.testing.assert_array_equal(secure.output.num_choices, plain.num_choices)
    for name in ("loss", "accuracy"):
        np.testing.assert_array_equal(
            secure.output.chosen.over_clients[name].histogram,
            plain.chosen.over_clients[name].histogram,
        )
        np.testing.assert_allclose(
            secure.output.chosen.over_clients[name].total,
            plain.chosen.over_clients[name].total,
            rtol=1e-4,
        )
