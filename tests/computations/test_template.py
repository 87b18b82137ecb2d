"""The learning process that the template makes of an algorithm."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.computations.harness import assert_identical, random_client
from tff_agnostic.computations.agnostic_fed_avg import build_agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.errors import UserError
from tff_agnostic.models import logistic_regression


@pytest.fixture(scope="module")
def process(tff_runtime):
    return build_agnostic_fed_avg(logistic_regression(4, 3), 2)


def _cohort() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [random_client(rng, n, range(2)) for n in (5, 8)]


def test_it_is_a_learning_process_of_state_and_client_data(process):
    assert isinstance(process, tff.learning.templates.LearningProcess)
    state_type, data_type = process.next.type_signature.parameter
    assert state_type.placement is tff.SERVER
    assert data_type.placement is tff.CLIENTS
    names = [name for name, _ in tff.structure.iter_elements(data_type.member)]
    assert names == ["x", "y", "domain_id"]


def test_a_round_returns_the_output_that_tff_programs_expect(process):
    output = process.next(process.initialize(), _cohort())
    assert isinstance(output, tff.learning.templates.LearningProcessOutput)
    assert list(output.metrics) == [
        "client_work",
        "clients",
        "domain_weights",
        "finalizer",
        "aggregator",
    ]
    assert list(output.metrics["client_work"]["train"]) == ["loss", "num_examples", "accuracy"]


def test_weights_can_be_read_and_replaced(process):
    state = process.initialize()
    weights = process.get_model_weights(state)
    assert_identical(weights, state.weights)
    other = tff.learning.models.ModelWeights([w + 1 for w in weights.trainable], [])
    replaced = process.set_model_weights(state, other)
    assert_identical(process.get_model_weights(replaced), other)
    assert_identical(replaced._replace(weights=state.weights), state)


def test_replaced_weights_are_what_the_next_round_starts_from(process):
    state = process.initialize()
    other = tff.learning.models.ModelWeights([w + 1 for w in state.weights.trainable], [])
    output = process.next(process.set_model_weights(state, other), _cohort())
    same = process.next(state, _cohort())
    moved = output.state.weights.trainable[0] - same.state.weights.trainable[0]
    assert np.all(np.abs(moved) > 0.5)


def test_all_communication_is_one_broadcast_and_one_sum(process):
    uris = collections.Counter()

    def count(block):
        if isinstance(block, tff.framework.Intrinsic):
            uris[block.uri] += 1
        return block, False

    tff.framework.transform_postorder(process.next.to_building_block(), count)
    assert uris["federated_broadcast"] == 1
    assert uris["federated_sum"] == 1
    assert not [uri for uri in uris if uri.startswith(("federated_secure", "federated_aggregate"))]


def test_parameters_that_do_not_fit_the_domains_are_refused():
    params = AlgorithmParams(domain_weights=DomainWeightsParams(initial_weights=(0.5, 0.5)))
    with pytest.raises(UserError, match="expected 3 numbers, one per domain, found 2"):
        build_agnostic_fed_avg(logistic_regression(4, 3), 3, params)
