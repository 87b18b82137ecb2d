"""Private evaluations have noise of a known size, a known epsilon, and consistent histograms."""

import dataclasses
import math
from collections import OrderedDict
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.privacy.closed_forms import gaussian_epsilon
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.options import make_options
from tests.support.results import make_task
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.private_sum import (
    BudgetEvaluation,
    CentralDpSum,
    NoiseEvaluation,
    ServerNoiseOptions,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.domain_losses import DomainSums, MetricSums
from tff_agnostic.computations.evaluation import ClientDistribution, EvaluationOutput
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.metrics.evaluation_report import evaluation_report
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import FixedSizeCohorts, PoissonCohorts, StratifiedCohorts
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.training.private_evaluation import (
    PrivateEvaluation,
    consistent,
    evaluation_key,
    private_evaluation_bounds,
)

_KEY = (123456789, 987654321)
_LIMITS = {"limit_examples": 8, "limit_loss": 6.0}


@pytest.fixture(scope="module")
def task():
    return make_task(("a", "b", "c"), clients=40)


def _private(
    task: Any, z: float = 1.0, training: Optional[Mechanism] = None, **settings: Any
) -> PrivateEvaluation:
    noise = {"private_evaluation": NoiseEvaluation(z)}
    options = make_options(ServerNoiseOptions, **{**noise, "delta": 1e-3, **_LIMITS, **settings})
    return PrivateEvaluation(options, task, PlainSum(), 3, training)


def _clients(task: Any) -> list[Any]:
    return [task.test.read(client_id) for client_id in task.test.client_ids]


@pytest.fixture(scope="module")
def evaluate(streaming_runtime, task):
    noise = _private(task, 0.0)
    return streaming_runtime.measurement(noise.measurement, noise.aggregation)


def _output(evaluate: Any, task: Any, noise: PrivateEvaluation, release: int = 0) -> Any:
    weights = task.model.initial_weights
    state = noise.state(evaluation_key(_KEY, "here"), release)
    return evaluate(weights, [_clients(task)], state).output


@pytest.mark.nightly
def test_noiseless_private_evaluation_equals_plain_evaluation(streaming_runtime, task, evaluate):
    noise = _private(task, 0.0)
    plain = streaming_runtime.evaluation(task.model, task.num_domains, PlainSum())
    expected = plain(task.model.initial_weights, [_clients(task)]).output
    actual = noise.consistent(_output(evaluate, task, noise))
    for field in ("sums", "over_clients", "clients"):
        values, wanted = (tf.nest.flatten(getattr(each, field)) for each in (actual, expected))
        assert_all_close(values, wanted, atol=1e-6)
    assert not any(np.any(value) for value in tf.nest.flatten(actual.by_size))
    # The output suffices to write a run's files, although it lacks the sizes of clients.
    report = evaluation_report(task.model, task.domain_names, actual).to_json()
    assert report["overall"]["over_clients"]["loss"]["num_clients"] == 40


@pytest.mark.nightly
def test_noise_has_the_accounted_size(task, evaluate):
    """Histogram bins have independent noise; a client counts in up to 4 rows."""
    z = 3.0
    noise = _private(task, z)
    none = _output(evaluate, task, _private(task, 0.0))
    noisy, again, other = (_output(evaluate, task, noise, release) for release in (5, 5, 6))
    assert_identical(again, noisy)
    # Models that one pass evaluates have different noise.
    states = [noise.state(evaluation_key(_KEY, "here"), release) for release in (5, 6)]
    both = evaluate.for_each([task.model.initial_weights] * 2, [_clients(task)], states)
    assert_identical([part.output for part in both], [noisy, other])
    differences = [
        np.ravel(a.over_clients["loss"].histogram - b.over_clients["loss"].histogram)
        for a, b in ((noisy, none), (other, none))
    ]
    assert abs(np.corrcoef(*differences)[0, 1]) < 0.1
    split = noise.statement(1).split
    assert sum(zg**-2 for zg in split.values()) ** -0.5 == pytest.approx(z)
    client_noise = [zg for name, zg in split.items() if name.startswith("over_clients")]
    assert client_noise == pytest.approx(
        [z * math.sqrt(len(client_noise) / 0.2)] * len(client_noise)
    )
    expected = client_noise[0] * math.sqrt(task.num_domains + 1)
    assert np.std(np.concatenate(differences)) == pytest.approx(expected, rel=0.05)
    assert all(
        zg == pytest.approx(z * math.sqrt(5 / 0.8)) for n, zg in split.items() if n == "clients"
    )
    assert noise.consistent(noisy).over_clients["loss"].histogram.min() >= 0


def test_distribution_with_zero_share_is_not_released(task):
    noise = _private(task, private_evaluation=NoiseEvaluation(1.0, clients_share=0.0))
    split = noise.statement(1).split
    assert not any(name.startswith("over_clients") for name in split)
    assert sum(zg**-2 for zg in split.values()) ** -0.5 == pytest.approx(1.0)


@pytest.mark.nightly
def test_epsilon_includes_requested_class_counts(streaming_runtime, task, evaluate):
    z = 2.0
    assert not any(name.startswith("classes") for name in _private(task, z).statement(1).split)
    assert _output(evaluate, task, _private(task, 0.0)).classes == ()
    noise = _private(task, private_evaluation=NoiseEvaluation(z, statistics=True))
    split = noise.statement(1).split
    # Other groups get more noise, so that epsilon depends on z only.
    assert sum(zg**-2 for zg in split.values()) ** -0.5 == pytest.approx(z)
    assert noise.epsilon(2) == _private(task, z).epsilon(2)
    assert (
        split["classes"] == split["sums/losses"] > _private(task, z).statement(1).split["clients"]
    )
    counting = streaming_runtime.measurement(noise.measurement, noise.aggregation)
    silent = _private(task, private_evaluation=NoiseEvaluation(0.0, statistics=True))
    table = _output(counting, task, silent).classes.confusion
    kernel, bias = task.model.initial_weights.trainable
    expected = np.zeros([3, 3, 3], int)
    for client in _clients(task):
        first = {name: column[: _LIMITS["limit_examples"]] for name, column in client.items()}
        answers = (first["x"] @ kernel + bias).argmax(axis=1)
        np.add.at(expected, (first["domain_id"], first["y"], answers), 1)
    np.testing.assert_array_equal(table, expected)
    noisy = [_output(counting, task, noise, k).classes.confusion - table for k in range(12)]
    deviation = split["classes"] * _LIMITS["limit_examples"]
    assert np.std(noisy) == pytest.approx(deviation, rel=0.15)
    one = counting(
        task.model.initial_weights,
        [_clients(task)[:1]],
        silent.state(evaluation_key(_KEY, "here"), 0),
    )
    assert 0 < np.linalg.norm(one.output.classes.confusion) <= _LIMITS["limit_examples"]


class _KeySender(CentralDpSum):
    """Sends the noise key to clients."""

    def client_params(self, state: Any) -> Any:
        return state.noise_key


def test_rejects_key_sent_to_clients(streaming_runtime, task):
    noise = _private(task, 1.0)
    fields = {f.name: getattr(noise.aggregation, f.name) for f in dataclasses.fields(CentralDpSum)}
    with pytest.raises(UserError, match="step 'evaluation': the broadcast depends on"):
        streaming_runtime.measurement(noise.measurement, _KeySender(**fields))


@pytest.mark.parametrize(("z", "releases"), [(2.0, 1), (7.5, 100)])
def test_epsilon_equals_composed_gaussian_noise(task, z, releases):
    noise = _private(task, z)
    expected = gaussian_epsilon(math.sqrt(releases) / z, 1e-3)
    assert noise.epsilon(releases) == pytest.approx(expected, rel=2e-3)
    promised = noise.statement(releases)
    assert f"({promised.epsilon:.4g}, 0.001)-differential privacy" in promised.text
    assert promised.to_dict()["evaluations"] == releases
    assert not any("evaluations" in text for text in promised.not_covered)


@pytest.mark.slow
def test_noise_from_a_budget_covers_the_planned_evaluations(task):
    noise = _private(task, private_evaluation=BudgetEvaluation(2.0))
    assert noise.epsilon(3) == pytest.approx(2.0, rel=1e-3)
    assert gaussian_epsilon(math.sqrt(3) / noise.mechanism.noise_multiplier, 1e-3) == pytest.approx(
        2.0, rel=2e-3
    )


@pytest.mark.parametrize("z", [4.0, 0.8])
def test_training_and_evaluation_compose_as_one_gaussian(task, z):
    """With all clients in every round, training is a Gaussian mechanism as evaluation is."""
    training = CentralNoise(5.0, PoissonCohorts(40, 40))
    noise = _private(task, z, training)
    account = PrivacyAccountant([training, noise.mechanism], 1e-3)
    # With z=0.8, evaluations without training would be accounted on a coarser grid than training.
    assert (noise.mechanism.interval(3) > training.interval(10)) == (z == 0.8)
    mu = math.sqrt(10 / 25 + 3 / z**2)
    assert account.epsilon(10, 3) == pytest.approx(gaussian_epsilon(mu, 1e-3), rel=2e-3)


@pytest.mark.parametrize(
    ("training", "sensitivity"),
    [
        (CentralNoise(3.0, FixedSizeCohorts(40, 4)), 2.0),
        # Neighbouring data replace one client of a stratum by another, so two clients' values
        # change in every evaluation.
        (CentralNoise(3.0, StratifiedCohorts((30, 10), 4)), 2.0),
        (TreeNoise(3.0, Participations(2, 5)), 1.0),
        (CentralNoise(3.0, PoissonCohorts(40, 4)), 1.0),
    ],
)
def test_evaluation_has_the_adjacency_of_training(task, training, sensitivity):
    noise = _private(task, 6.0, training)
    assert noise.mechanism.adjacency == training.adjacency
    alone = gaussian_epsilon(sensitivity * math.sqrt(2) / 6.0, 1e-3)
    assert noise.epsilon(2) == pytest.approx(alone, rel=2e-3)
    composed = PrivacyAccountant([training, noise.mechanism], 1e-3)
    assert composed.epsilon(5, 2) > max(composed.epsilon(5, 0), alone)


def test_clients_in_both_splits_are_counted(task):
    assert _private(task, 1.0).num_shared == len({*task.train.client_ids} & {*task.test.client_ids})
    clients = {"one": task.test.read(task.test.client_ids[0])}
    apart = dataclasses.replace(task, train=InMemoryClients(clients))
    noise = _private(apart, 1.0)
    assert noise.num_shared == 0
    assert any("no name is among both" in text for text in noise.statement(1).remarks)


def test_rejects_impossible_guarantees(task):
    with pytest.raises(UserError, match=r"^delta: expected more than 0 and less than 0\.025"):
        _private(task, 1.0, delta=0.1)
    (accuracy,) = task.model.metrics
    unbounded = dataclasses.replace(accuracy, max_numerator=math.inf)
    model = dataclasses.replace(task.model, metrics=(unbounded,))
    with pytest.raises(UserError, match=r"^metric accuracy: expected a finite"):
        _private(dataclasses.replace(task, model=model), 1.0)


def test_noisy_histograms_become_possible_histograms(task):
    limits = make_options(ServerNoiseOptions, **_LIMITS).limit
    bounds = private_evaluation_bounds(task.model, 1, limits, with_client_distributions=True)
    rng = np.random.default_rng(0)
    exact = rng.multinomial(5000, np.ones(201) / 201, size=2)
    noisy = np.rint(exact + rng.normal(scale=20.0, size=exact.shape)).astype(np.int64)
    rows = ClientDistribution(np.array([5013, -4]), np.float32([9e9, -1.0]), noisy)

    def noisy_output(rows, examples=1.0):
        ratio = MetricSums(np.zeros([1]), np.array([examples]))
        sums = DomainSums(*ratio, OrderedDict(accuracy=ratio))
        distributions = {name: rows for name in bounds.over_clients}
        return EvaluationOutput(sums, distributions, None, None)  # type: ignore[arg-type]

    output = noisy_output(rows)
    actual = ClientDistribution(
        *map(np.asarray, consistent(output, bounds).over_clients["accuracy"])
    )
    np.testing.assert_array_equal(actual.num_clients, [5013, 0])
    np.testing.assert_array_equal(actual.total, np.float32([5013.0, 0.0]))
    np.testing.assert_array_equal(actual.histogram.sum(axis=1), [5013, 0])
    assert actual.histogram.min() >= 0
    # Cumulative sums have noise of about sqrt(201) * 20 = 284 at most. Clipping each bin at 0 would
    # add a bias of about 201 / 2 * 8 = 804.
    off = np.abs(np.cumsum(actual.histogram[0]) - np.cumsum(exact[0]))
    assert off.max() < 600
    rows = ClientDistribution(exact.sum(axis=1), np.float32([7.0, 8.0]), exact)
    possible = consistent(noisy_output(rows), bounds).over_clients
    np.testing.assert_array_equal(possible["loss"].histogram, exact)
    for part in consistent(noisy_output(rows, examples=0.0), bounds).over_clients.values():
        assert not any(np.any(field) for field in part)
