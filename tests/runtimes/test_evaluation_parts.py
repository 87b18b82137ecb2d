"""Evaluations of clients in several parts release only the total sum."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.clients import random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.models import random_weights
from tests.support.options import make_options
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_MODEL = logistic_regression(4, 3)
_RNG = np.random.default_rng(2)
_WEIGHTS = random_weights(2)
# With so few bits, rounding each part separately would change the result.
_SECURE = SecureSum(make_options(SecureSumOptions, limit_examples=20, secure_bits=9))
_CLIENTS = [random_client(_RNG, n, range(3)) for n in (9, 1, 30, 4, 13)]


@pytest.fixture(scope="module", params=["tff", "streamed", "vectorised"])
def runtime(request):
    if request.param == "tff":
        yield request.getfixturevalue("tff_runtime")
        return
    with CohortRuntime(CohortOptions(client_mode=request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def secure(runtime):
    return runtime.evaluation(_MODEL, 3, _SECURE)


def _in_parts(*sizes: int) -> list[Sequence[Any]]:
    ends = np.cumsum(sizes)
    return [_CLIENTS[end - size : end] for size, end in zip(sizes, ends)]


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (1, 4), (4, 0, 1), (0, 5)])
def test_secure_parts_equal_complete_sums(secure, sizes):
    """A part may have one client or none, although a released sum needs two."""
    result, expected = secure(_WEIGHTS, _in_parts(*sizes)), secure(_WEIGHTS, _in_parts(5))
    assert_identical(result.output, expected.output)
    assert result.clipped == expected.clipped
    # The third client has 10 examples more than the limit.
    assert result.clipped["examples"] == 10


@pytest.mark.nightly
def test_parts_may_come_from_a_generator(secure):
    result = secure(_WEIGHTS, ([client] for client in _CLIENTS))
    assert_identical(result.output, secure(_WEIGHTS, [_CLIENTS]).output)


@pytest.mark.nightly
def test_joint_evaluation_equals_separate_evaluations(runtime, secure):
    others = [ModelWeights([factor * w for w in _WEIGHTS.trainable], []) for factor in (0, -3, 40)]
    models = [_WEIGHTS, *others]
    for evaluate in (secure, runtime.evaluation(_MODEL, 3, PlainSum())):
        # A generator of parts can be read only once.
        result = evaluate.for_each(models, (part for part in _in_parts(2, 3)))
        alone = [evaluate(weights, _in_parts(2, 3)) for weights in models]
        assert_identical([group.output for group in result], [group.output for group in alone])
        assert [group.clipped for group in result] == [group.clipped for group in alone]
        assert len({float(group.output.sums.losses[0]) for group in result}) == len(models)
    for group in secure.for_each(models, []):
        assert not any(group.output.clients.values())


@pytest.mark.nightly
@pytest.mark.parametrize("parts", [[1], [0, 1, 0]])
def test_single_client_in_all_parts_raises(secure, parts):
    with pytest.raises(UserError, match="expected at least 2 clients in a sum, found 1"):
        secure(_WEIGHTS, _in_parts(*parts))


@pytest.mark.nightly
@pytest.mark.parametrize("parts", [[], [0], [0, 0]])
def test_evaluation_without_clients_gives_zeros(secure, parts):
    assert not any(secure(_WEIGHTS, _in_parts(*parts)).output.clients.values())


def test_plain_parts_equal_complete_sums(runtime):
    plain = runtime.evaluation(_MODEL, 3, PlainSum())
    whole = plain(_WEIGHTS, [_CLIENTS]).output
    assert_all_close(plain(_WEIGHTS, _in_parts(2, 1, 2)).output, whole)
    # Plain sums allow a single client.
    assert plain(_WEIGHTS, _in_parts(1)).output.clients["evaluated"] == 1
    assert plain(_WEIGHTS, []).output.clients["evaluated"] == 0
