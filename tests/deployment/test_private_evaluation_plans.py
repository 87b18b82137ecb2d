"""Evaluation plans with noise: what private evaluations of a run give, with a key of their own."""

import json

import numpy as np
import pytest

from plan_runner.export import open_export
from plan_runner.rounds import conformance_clients, relative_difference, run_rounds, verify
from plan_runner.tflite import tflite_comparison
from tests.deployment.kinds import KINDS, make_request
from tests.marks import usually
from tests.options import make_options
from tests.run.harness import make_task
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.private_sum import ServerNoiseOptions
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.computations.histograms import LogGrid
from tff_agnostic.computations.round import Round
from tff_agnostic.deployment.export import export
from tff_agnostic.deployment.metrics import EvaluationMetrics, quantiles
from tff_agnostic.deployment.privacy import CONFORMANCE_KEY, FleetNoise
from tff_agnostic.deployment.rounds import EVALUATION, synthetic_clients
from tff_agnostic.training.private_evaluation import PrivateEvaluation, consistent

pytestmark = pytest.mark.slow

_KEY = (0x0F1E2D3C4B5A6978, 0x7766554433, -0x1E2D3C4B5A69780F, 0x66554433778899)
_LIMITS = {"limit_examples": 20, "limit_loss": 5.0}
_INNER = {
    "daf": PlainSum(),
    "secure": SecureSum(
        make_options(SecureSumOptions, **_LIMITS, secure_min_clients=1, secure_bits=40)
    ),
}
_ROUNDING = 1e-5


@pytest.fixture(scope="module", params=usually(["daf"], _INNER))
def profile(request):
    return request.param


@pytest.fixture(scope="module")
def noise(profile):
    """Little noise: of four clients something has to be left."""
    task = make_task(("a", "b", "c"), num_features=4)
    options = make_options(
        ServerNoiseOptions,
        private_evaluation="noise:multiplier=0.05",
        delta=1e-3,
        **_LIMITS,
    )
    return PrivateEvaluation(options, task, _INNER[profile], 1)


@pytest.fixture(scope="module")
def folder(noise, profile, tff_runtime, tmp_path_factory):
    request = make_request(
        profile,
        rounds=EVALUATION,
        aggregation=noise.aggregation,
        evaluation=EvaluationMetrics(
            KINDS["logistic"].model(),
            measurement=lambda model, p: noise.measurement,
            tidied=lambda output: consistent(output, noise.bounds),
        ),
        noise=FleetNoise(_KEY, lambda state: noise.statement(1).to_dict(), server_must=("last",)),
    )
    path = tmp_path_factory.mktemp("private") / "export"
    export(path, request, tff_runtime)
    return path


def test_it_is_verified_with_the_public_key_and_what_devices_get(folder):
    deployment = open_export(folder)
    beside = tflite_comparison(deployment)
    (check,) = verify(deployment, beside=beside)
    assert check.failing(_ROUNDING) == []
    assert beside.clients == 4
    assert beside.largest <= _ROUNDING
    with np.load(folder / "conformance/round_1.npz") as tensors:
        assert tuple(tensors["server/aggregations/0/noise_key"]) == CONFORMANCE_KEY


def test_rounds_have_the_noise_of_the_fleets_key_and_of_their_number(
    folder, noise, profile, streaming_runtime
):
    deployment, request = open_export(folder), make_request(profile)
    columns = request.algorithm.client_data_spec
    clients = synthetic_clients(columns, request.column_ranges, request.num_domains)
    algorithm = Round(request.algorithm, PlainSum()).initialize().algorithm
    weights = request.algorithm.main_model(algorithm)
    evaluate = streaming_runtime.measurement(noise.measurement, noise.aggregation)
    cohorts = [conformance_clients(deployment)] * 2
    for number, result in enumerate(run_rounds(deployment, cohorts)):
        state = noise.state(_KEY, number)
        expected = noise.consistent(evaluate(weights, [list(clients.values())], state).output)
        found = {name.removeprefix("metrics/"): v for name, v in result.metrics.items()}
        np.testing.assert_array_equal(found["sums/sums/counts"], expected.sums.counts)
        assert relative_difference(found["sums/sums/losses"], expected.sums.losses) <= _ROUNDING
        of_loss = expected.over_clients["loss"]
        np.testing.assert_array_equal(found["sums/over_clients/loss/histogram"], of_loss.histogram)
        median = quantiles(LogGrid(), of_loss.histogram, 0.5)
        np.testing.assert_allclose(found["over_clients/loss/p50"], median, rtol=1e-6)
        assert not np.any(found["sums/by_size/loss/num_clients"])
        assert result.state["server/aggregations/0/releases"] == number + 1


def test_the_manifest_says_what_is_spent_and_what_a_server_must_do(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    found = manifest["privacy"]["differential_privacy"]
    assert found["guarantee_as_simulated"]["evaluations"] == 1
    multipliers = [group["noise_multiplier"] for group in found["groups"]]
    assert sum(z**-2 for z in multipliers) ** -0.5 == pytest.approx(0.05)
    assert "expected_devices_per_round" not in found
    assert found["server_must"][-1] == "last"
    assert (folder / "server_state.ckpt").stat().st_mode & 0o077 == 0
