"""Evaluation plans with noise match private evaluations of runs."""

import numpy as np
import pytest

from plan_runner.export import open_export
from plan_runner.rounds import conformance_clients, run_rounds, verify
from plan_runner.tflite import relative_difference, tflite_comparison
from tests.deployment.kinds import KINDS, make_request
from tests.support.marks import usually
from tests.support.options import make_options
from tests.support.results import make_task
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.private_sum import ServerNoiseOptions
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.base.files import read_json
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
    """Returns a private evaluation with little noise, since only four clients take part."""
    task = make_task(("a", "b", "c"), num_features=4)
    options = make_options(
        ServerNoiseOptions, private_evaluation="noise:multiplier=0.05", delta=1e-3, **_LIMITS
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


def test_private_evaluation_passes_verification_with_public_key(folder):
    deployment = open_export(folder)
    comparison = tflite_comparison(deployment)
    (check,) = verify(deployment, comparison=comparison)
    assert check.failing(_ROUNDING) == []
    assert comparison.clients == 4
    assert comparison.largest <= _ROUNDING
    with np.load(folder / "conformance/round_1.npz") as tensors:
        assert tuple(tensors["server/aggregations/0/noise_key"]) == CONFORMANCE_KEY


def test_evaluation_noise_equals_the_runtimes(folder, noise, profile, streaming_runtime):
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
        values = {name.removeprefix("metrics/"): v for name, v in result.metrics.items()}
        np.testing.assert_array_equal(values["sums/sums/counts"], expected.sums.counts)
        assert relative_difference(values["sums/sums/losses"], expected.sums.losses) <= _ROUNDING
        losses = expected.over_clients["loss"]
        np.testing.assert_array_equal(values["sums/over_clients/loss/histogram"], losses.histogram)
        median = quantiles(LogGrid(), losses.histogram, 0.5)
        np.testing.assert_allclose(values["over_clients/loss/p50"], median, rtol=1e-6)
        assert not np.any(values["sums/by_size/loss/num_clients"])
        assert result.state["server/aggregations/0/releases"] == number + 1


def test_evaluation_manifest_has_guarantee_and_duties(folder):
    manifest = read_json(folder / "manifest.json")
    facts = manifest["privacy"]["differential_privacy"]
    assert facts["guarantee_as_simulated"]["evaluations"] == 1
    multipliers = [group["noise_multiplier"] for group in facts["groups"]]
    assert sum(z**-2 for z in multipliers) ** -0.5 == pytest.approx(0.05)
    assert "expected_devices_per_round" not in facts
    assert facts["server_must"][-1] == "last"
    assert (folder / "server_state.ckpt").stat().st_mode & 0o077 == 0
