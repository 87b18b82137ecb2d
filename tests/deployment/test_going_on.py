"""A deployment goes on where a simulation ended, as if the simulation had gone on itself."""

import numpy as np
import pytest

from plan_runner.export import open_export
from plan_runner.rounds import conformance_clients, run_rounds
from tests.deployment import in_worker
from tests.deployment.kinds import make_request
from tests.marks import usually
from tff_agnostic.deployment.export import export
from tff_agnostic.deployment.graphs import SERVER, leaves, named_values
from tff_agnostic.deployment.rounds import synthetic_clients

_ROUNDS = 6


@pytest.mark.nightly
@pytest.mark.parametrize("profile", usually(["secure"], ["secure", "daf"]))
def test_six_rounds_and_six_are_twelve(tff_runtime, tmp_path, monkeypatch, profile):
    """Bit for bit, with the same clients, in the runtime's TensorFlow."""
    request = make_request(profile, server_optimizer="adam")
    algorithm = request.algorithm
    training = tff_runtime.training(algorithm, request.aggregation)
    columns = algorithm.client_data_spec
    cohort = list(synthetic_clients(columns, request.column_ranges, request.num_domains).values())

    def simulated(state):
        for _ in range(_ROUNDS):
            state, _ = training.next(state, cohort)
        return state

    halfway = simulated(training.initialize())
    request = make_request(profile, server_optimizer="adam", restore=lambda initial: halfway)
    export(tmp_path / "export", request, tff_runtime)
    in_worker.use(monkeypatch)
    deployment = open_export(tmp_path / "export")
    # The made-up clients of the conformance rounds are the same ones.
    *_, last = run_rounds(deployment, [conformance_clients(deployment)] * _ROUNDS)

    state_type = training.process.learning_process.next.type_signature.parameter[0].member
    expected = named_values(simulated(halfway), leaves(state_type), SERVER)
    assert set(last.state) == set(expected)
    for name, value in expected.items():
        assert last.state[name].dtype == value.dtype
        np.testing.assert_array_equal(last.state[name], value, err_msg=name)
