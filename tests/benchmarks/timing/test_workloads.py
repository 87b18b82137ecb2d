"""The sizes of the workloads, their data, and the operations that they cost."""

import numpy as np
import pytest

from benchmarks.timing.own_side import MODELS
from benchmarks.timing.products import Product, round_products, total_flops
from benchmarks.timing.products_side import operands
from benchmarks.timing.workloads import WORKLOADS, logistic, make_clients
from tests.benchmarks.timing.harness import TINY


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_model_fits_the_workload(name):
    workload = WORKLOADS[name]
    model = MODELS[workload.model](workload)
    assert model.num_parameters == workload.parameters
    assert tuple(model.example_spec["x"].shape[1:]) == workload.features
    assert tuple(model.example_spec["y"].shape[1:]) == workload.labels


@pytest.mark.parametrize("name", WORKLOADS)
def test_clients_have_the_workloads_shape(name):
    workload = WORKLOADS[name]
    clients = make_clients(workload)
    assert len(clients) == workload.clients
    for client in clients[:3]:
        assert client["x"].shape == (workload.examples, *workload.features)
        assert client["y"].shape == (workload.examples, *workload.labels)
        assert client["domain_id"].shape == (workload.examples,)
        assert client["x"].dtype == (np.int32 if workload.tokens else np.float32)
        assert client["y"].dtype == client["domain_id"].dtype == np.int32
        assert 0 <= client["y"].min() <= client["y"].max() < workload.classes
        assert set(client["domain_id"]) <= set(range(workload.domains))
        if workload.tokens:
            assert client["x"].min() > 0 and client["x"].max() < workload.classes


def test_clients_depend_on_the_seed_only():
    first, again, other = make_clients(TINY), make_clients(TINY), make_clients(TINY, seed=1)
    np.testing.assert_equal(first, again)
    assert not np.array_equal(first[0]["x"], other[0]["x"])


def test_a_batch_divides_a_client():
    for workload in WORKLOADS.values():
        assert workload.steps * workload.batch_size == workload.examples


def test_products_of_softmax_regression():
    workload = logistic(clients=7)
    # The domain pass, and of each step the scores and the gradient of the matrix.
    assert round_products(workload) == [
        Product(m=40, k=60, n=10, count=1, batch=7),
        Product(m=10, k=60, n=10, count=4, batch=7),
        Product(m=60, k=10, n=10, count=4, batch=7),
    ]
    assert total_flops(round_products(workload)) == 3 * 2 * 7 * 40 * 60 * 10


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_step_costs_three_times_its_forward_pass(name):
    # Less the gradient of the input of a first layer; the domain pass is one more forward pass.
    workload = WORKLOADS[name]
    examples = workload.clients * workload.examples
    forward = {
        "emnist_cnn": 676 * 9 * 32 + 576 * 288 * 64 + 9216 * 128 + 128 * 62,
        "stackoverflow_lstm": 20 * (96 * 2680 + 670 * 2680 + 670 * 96 + 96 * 10_004),
        "logistic": 60 * 10,
    }[name]
    first = {"emnist_cnn": 676 * 9 * 32, "stackoverflow_lstm": 0, "logistic": 600}[name]
    assert total_flops(round_products(workload)) == 2 * examples * (4 * forward - first)


def test_operands_have_the_products_shape():
    left, right = operands(Product(m=2, k=3, n=4, count=1, batch=5))
    assert (left.shape, right.shape) == ((5, 2, 3), (5, 3, 4))
    left, right = operands(Product(m=2, k=3, n=4, count=9))
    assert (left.shape, right.shape) == ((2, 3), (3, 4))
