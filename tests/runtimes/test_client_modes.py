"""Client modes give equal sums, choose groups of clients, and raise clients' errors unchanged."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.marks import usually
from tests.support.model_kinds import KINDS
from tests.support.options import make_options
from tff_agnostic.algorithms import FedAvgOptions, Problem
from tff_agnostic.algorithms.fed_avg import fed_avg
from tff_agnostic.algorithms.fed_boost import fed_boost
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import BoostOptions
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.round import Round
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.runtimes.client_work import (
    CLIENT_MODES,
    ON_ACCELERATOR,
    ON_CPU,
    ClientWork,
    CompiledClientWork,
    Grouping,
)
from tff_agnostic.runtimes.devices import streamed_shards


class _Work:
    """Compiled client work of an algorithm's only step, and the message to clients."""

    def __init__(
        self,
        model: Model,
        change: Any = lambda work: work,
        built: Any = None,
        grouping: Grouping = ON_CPU,
    ) -> None:
        options = make_options(
            FedAvgOptions, client_learning_rate=0.5, client_epochs=2, client_batch_size=4
        )
        algorithm = built or fed_avg(Problem.numbered(model, 3), options)
        (step,) = algorithm.steps
        step = dataclasses.replace(step, client_work=change(step.client_work))
        round_ = Round(dataclasses.replace(algorithm, steps=(step,)), PlainSum())
        self.broadcast = round_.start(round_.initialize())
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.broadcast)
        self.compiled = CompiledClientWork(
            ClientWork(round_.steps[0], specs, algorithm.client_data_spec), grouping=grouping
        )

    def plan(self, mode, cohort, max_clients_in_step=None):
        return CLIENT_MODES[mode](self.compiled, cohort, max_clients_in_step)

    def sums(self, mode, cohort, max_clients_in_step=None):
        """Returns each shard's sum."""
        run, shards = self.plan(mode, cohort, max_clients_in_step)
        return [run(self.broadcast, [cohort[k] for k in shard]).output for shard in shards]


@pytest.fixture(scope="module")
def small() -> _Work:
    return _Work(logistic_regression(4, 3))


@pytest.fixture(scope="module")
def large() -> _Work:
    """Work with a model that has too many weights for vectorised clients."""
    return _Work(logistic_regression(4000, 50))


def _cohort(*sizes: int, num_features: int = 4):
    rng = np.random.default_rng(0)
    return [random_client(rng, size, range(3), num_features) for size in sizes]


@pytest.mark.nightly
def test_every_mode_gives_the_same_sum(small):
    cohort = _cohort(9, 0, 1, 14, 6)
    expected = _total(small.sums("streamed", cohort))
    for mode in CLIENT_MODES:
        for most in (None, 1, 2):
            assert_all_close(_total(small.sums(mode, cohort, most)), expected)


def test_streamed_clients_stay_in_their_order(small):
    for num in (1, 3, 40):
        _, shards = small.plan("streamed", _cohort(*range(num)))
        assert shards == streamed_shards(num)


@pytest.mark.nightly
def test_vectorised_groups_have_the_maximum_size(small):
    cohort = _cohort(*[5] * 10)
    assert [len(shard) for shard in small.plan("vectorised", cohort, 4)[1]] == [4, 4, 2]
    assert [len(shard) for shard in small.plan("vectorised", cohort, 1)[1]] == [1] * 10
    assert [len(shard) for shard in small.plan("vectorised", cohort)[1]] == [10]


@pytest.mark.nightly
def test_groups_shrink_with_large_clients_or_models(small, large):
    """Large clients have 2 MB of examples; the large model has 10,000 times as many weights."""
    sizes = [5] * 300
    small_shards = small.plan("vectorised", _cohort(*sizes))[1]
    large_shards = large.plan("vectorised", _cohort(*sizes, num_features=4000))[1]
    row_shards = small.plan("vectorised", _cohort(*[100_000] * 20))[1]
    assert max(map(len, small_shards)) > 100
    assert max(map(len, large_shards)) < 100
    assert max(map(len, row_shards)) < 20
    # A single client runs even if it exceeds the limit.
    assert small.plan("vectorised", _cohort(3_000_000))[1] == [(0,)]


@pytest.mark.nightly
def test_automatic_mode_depends_on_model_size(small, large):
    cohort, large_cohort = _cohort(9, 4, 1), _cohort(9, 4, 1, num_features=4000)
    assert small.plan("auto", cohort, 2)[1] == small.plan("vectorised", cohort, 2)[1]
    assert large.plan("auto", large_cohort)[1] == streamed_shards(3)
    for result, expected in zip(
        large.sums("auto", large_cohort), large.sums("streamed", large_cohort)
    ):
        assert_identical(result, expected)


@pytest.mark.nightly
def test_accelerators_vectorise_large_models(large):
    large_cohort = _cohort(9, 4, 1, num_features=4000)
    accelerated = _Work(logistic_regression(4000, 50), grouping=ON_ACCELERATOR)
    assert accelerated.plan("auto", large_cohort)[1] == [(0, 1, 2)]

    kind, rng = KINDS["convolutional"], np.random.default_rng(0)
    images = kind.model()
    cohort = [kind.client(rng, size) for size in (9, 0, 4, 1)]
    on_cpu = _Work(images)
    assert on_cpu.plan("auto", cohort)[1] == streamed_shards(4)
    accelerated = _Work(images, grouping=ON_ACCELERATOR)
    assert accelerated.plan("auto", cohort)[1] == [(0, 2, 3, 1)]
    assert [len(shard) for shard in accelerated.plan("auto", cohort * 10)[1]] == [20, 20]
    result, expected = (
        tf.nest.flatten(_total(work.sums("auto", cohort))) for work in (accelerated, on_cpu)
    )
    for products, convolutions in zip(result, expected):
        np.testing.assert_allclose(products, convolutions, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_accelerator_dropout_equals_cpu_dropout_exactly():
    kind, rng = KINDS["dropout"], np.random.default_rng(0)
    cohort = [kind.client(rng, size) for size in (9, 0, 4, 1)]
    on_cpu, accelerated = (_Work(kind.model(), grouping=g) for g in (ON_CPU, ON_ACCELERATOR))
    result, expected = (work.sums("vectorised", cohort) for work in (accelerated, on_cpu))
    assert_identical(_total(result), _total(expected))


@pytest.mark.nightly
def test_ensembles_of_lookups_are_vectorised():
    """A client receives two predictors of half a megabyte, but gathers only a row per word."""
    outcomes = 60_000
    rng = np.random.default_rng(0)
    predictors = [ModelWeights([w], []) for w in rng.normal(size=[3, outcomes]).astype(np.float32)]
    model = ensemble(unigram_model(outcomes), predictors)
    problem = Problem.numbered(model, 3)
    work = _Work(model, built=fed_boost(problem, make_options(BoostOptions, budget=2)))
    words = [rng.integers(outcomes, size=n).astype(np.int32) for n in (9, 0, 4, 300, *[3] * 96)]
    cohort = [{"x": x, "y": x, "domain_id": np.zeros([len(x)], np.int32)} for x in words]
    shards = work.plan("auto", cohort)[1]
    assert shards == work.plan("vectorised", cohort)[1]
    # The predictors' size does not limit the shards.
    assert max(map(len, shards)) > 20
    assert_all_close(_total(work.sums("auto", cohort)), _total(work.sums("streamed", cohort)))


@pytest.mark.parametrize("mode", list(CLIENT_MODES))
def test_empty_cohort_has_no_shards(small, mode):
    assert small.plan(mode, [])[1] == []


class _BrokenError(Exception):
    """An error with a distinct type."""


def _breaks(values: tf.Tensor) -> tf.Tensor:
    raise _BrokenError("this is wrong whatever the mode")


def _refuses(values: tf.Tensor) -> tf.Tensor:
    raise UserError("--my_setting: expected a prime number, found 4")


def _has_wrong_shapes(values: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.zeros([2, 3]), tf.zeros([4, 5])) + values


def _with_mistake(wrong: Any, for_each: bool) -> Any:
    """Adds a failing function to client work, for each client or for all vectorised clients."""

    def change(work: Any) -> Any:
        def changed(broadcast: Any, clients: Any) -> Any:
            output = work(broadcast, clients)
            beta = clients.map(wrong, output.beta) if for_each else wrong(output.beta)
            return output._replace(beta=beta)

        return changed

    return change


_MISTAKES = {
    "own error": (_breaks, _BrokenError, "^this is wrong whatever the mode$"),
    "user error": (_refuses, UserError, "^--my_setting: expected a prime number, found 4$"),
    "shapes": (_has_wrong_shapes, ValueError, "Dimensions must be equal"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("for_each", [True, False])
@pytest.mark.parametrize(
    ("mode", "kind"),
    usually(
        [*itertools.product(["auto"], _MISTAKES), ("vectorised", "own error")],
        itertools.product(["auto", "vectorised"], _MISTAKES),
    ),
)
def test_client_errors_are_raised_unchanged(mode, for_each, kind):
    """The automatic mode must not hide the error by falling back to streamed clients."""
    wrong, error, message = _MISTAKES[kind]
    work = _Work(logistic_regression(4, 3), _with_mistake(wrong, for_each))
    with pytest.raises(error, match=message) as raised:
        work.sums(mode, _cohort(5, 2))
    assert raised.type is error


@pytest.mark.nightly
def test_functions_of_one_client_raise_when_vectorised():
    """The function requires a scalar, but vectorised clients have an axis of clients."""

    change = _with_mistake(lambda beta: tf.ensure_shape(beta, []), for_each=False)
    work = _Work(logistic_regression(4, 3), change)
    assert len(work.sums("streamed", _cohort(5, 2))) == 2
    with pytest.raises(ValueError, match=r"Shape must be rank|shape.* not compatible|Shapes"):
        work.sums("auto", _cohort(5, 2))


def _total(sums):
    return tf.nest.map_structure(lambda *values: sum(np.asarray(v) for v in values), *sums)
