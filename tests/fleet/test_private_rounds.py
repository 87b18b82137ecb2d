"""Exports of runs with distributed privacy, whose noise the nodes add."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from fleet.demo import Demo
from fleet.node_noise import skellam
from fleet.node_noise.noise import PrivacyRequirements, parse_node_noise
from fleet.node_noise.skellam import drawn
from fleet.settings import DataSettings
from fleet.state_folder import sums_file
from plan_runner.client import read_records
from plan_runner.errors import PlanError
from plan_runner.export import read_arrays, read_manifest
from plan_runner.graph_session import read_checkpoint
from tests.fleet.comparison import noise_in_units, noise_moments
from tests.fleet.fleet import Fleet, LocalChannel
from tests.plan_runner.harness import call
from tests.support.stores import write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.deployment.backends import demo_size
from tff_agnostic.deployment.export import export
from tff_agnostic.program.runs.export import DeviceSettings, export_request
from tff_agnostic.program.runs.spec import resolve

_SETTINGS = {
    "aggregation": "secure",
    "privacy": "distributed",
    "cohort_sampling": "uniform",
    "noise_multiplier": 1.0,
    "clients_per_round": 4,
    "participation": "public:min_clients=3",
    "rounds": 2,
}


@pytest.fixture(scope="module")
def request_():
    spec = resolve("toy_regression", _SETTINGS, {}, None, None)
    task = spec.load_task()
    with pytest.raises(UserError, match=r"nodes of a fleet do \(--backend=flower\)$"):
        export_request(spec, task, "secure", DeviceSettings())
    return export_request(spec, task, "secure", DeviceSettings(), backend="flower")


@pytest.fixture(scope="module")
def exported(request_, tff_runtime, tmp_path_factory):
    folder = tmp_path_factory.mktemp("private") / "export"
    export(folder, request_, tff_runtime)
    return folder


@pytest.fixture(scope="module")
def fleet(exported, tmp_path_factory):
    clients = exported / "conformance" / "clients"
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet", exported, clients)
    yield made
    made.close()


@pytest.mark.slow
def test_demo_rejects_sizes_that_the_noise_forbids(exported, fleet, tmp_path):
    noise = parse_node_noise(read_manifest(exported))
    manifest = json.loads((exported / "manifest.json").read_text())
    assert (demo_size({"privacy": {}}), demo_size(manifest)) == (4, 4)
    manifest["privacy"]["differential_privacy"]["fewest_clients"] = 5
    assert demo_size(manifest) == 5
    clients = exported / "conformance" / "clients"
    with pytest.raises(PlanError, match=r"^--nodes: expected at least 3, .* found 2$"):
        Demo(exported, clients, 2, 1, tmp_path / "demo", print)
    line = rf"^--rounds: expected at most {len(noise.claimed)}, .* found {len(noise.claimed) + 1}$"
    with pytest.raises(PlanError, match=line):
        Demo(exported, clients, 3, len(noise.claimed) + 1, tmp_path / "demo", print)
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_private_round_is_plain_round_plus_noise(exported, fleet, tmp_path, monkeypatch):
    """A round without noise equals run_plan's, and so does a round minus its noise."""
    recorded = []

    def recording_drawn(*args):
        recorded.append(drawn(*args))
        return recorded[-1]

    def no_noise(variance, size, words):
        return np.zeros(size, np.int64)

    first, sums = fleet.names[0], {}
    stored = {"data": DataSettings(store=_store(exported, first, tmp_path), client=first)}
    for name, draw in (("plain", no_noise), ("noised", recording_drawn)):
        monkeypatch.setattr(skellam, "drawn", draw)
        nodes = {}
        for node in fleet.names:
            changes = {"state": tmp_path / name / node, **(stored if node == first else {})}
            nodes[node] = fleet.node(fleet.node_settings(node, trust=True, **changes))
        state = tmp_path / name / "server"
        recorder = fleet.serve(state, 1, LocalChannel(nodes), trust=True, keeps_sums=True)
        sums[name] = read_arrays(state / sums_file("training", 1))
        assert any("1 sum unmasked, epsilon" in line for line in recorder.lines)
        account = (state / "training_account.jsonl").read_text()
        assert len(json.loads(account)["clients"]) == 4
    plain, noised = (
        (tmp_path / name / "server" / "server_state.ckpt").read_bytes() for name in sums
    )
    expected = fleet.simulated(tmp_path, [fleet.names])
    assert plain == expected and noised != expected
    noise = parse_node_noise(read_manifest(exported))
    tensors = [(name, group.modulus) for group in noise.groups for name in group.tensors]
    assert len(recorded) == 4 * len(tensors)
    totals = [sum(recorded[number :: len(tensors)]) for number in range(len(tensors))]
    for (name, modulus), total in zip(tensors, totals):
        without, with_noise = (sums[kind][name].astype(np.int64).ravel() for kind in sums)
        np.testing.assert_array_equal((with_noise - total) % modulus, without)
    _check_noise_in_units(noise, sums, totals)


def _check_noise_in_units(noise, sums, totals) -> None:
    """Checks the noise that the comparison of a demo finds in its sums."""
    result = list(noise_in_units(noise, sums["noised"], sums["plain"], 4))
    for (units, variance), group in zip(result, noise.groups):
        assert variance == 4 * group.variance
        assert units.size == sum(sums["plain"][name].size for name in group.tensors)
    squares = sum(float((units**2).sum() * variance) for units, variance in result)
    assert squares == pytest.approx(sum(float((total**2).sum()) for total in totals))
    moved = {name: sums["noised"][name] + 1 for name in noise.without_noise}
    with pytest.raises(PlanError, match="expected the sum of the clients"):
        list(noise_in_units(noise, {**sums["noised"], **moved}, sums["plain"], 4))


def _store(exported, client, folder):
    """Returns a client store with a conformance client's examples, under the store's names."""
    path = exported / "conformance" / "clients" / f"{client}.tfrecord"
    domains = json.loads((exported / "manifest.json").read_text())["domains"]
    records = []
    for serialized in read_records(path):
        features = tf.train.Example.FromString(serialized).features.feature
        (label,) = features["y"].float_list.value
        (domain,) = features["domain_id"].int64_list.value
        x = np.array(features["x"].float_list.value, np.float32)
        records.append(Record(client, domains[domain], {"x": x, "label": label}))
    return write_store(folder / "s.sqlite", [("train", record) for record in records], "features")


def test_noise_moments_detect_wrong_variance_and_mean():
    def moments(factor):
        draws = [
            (np.random.default_rng(g).normal(0, v**0.5, 4000), v) for g, v in enumerate((9, 400))
        ]
        return noise_moments([(factor * values / v**0.5, v) for values, v in draws])

    result = moments(1.0)
    assert result.fits and result.numbers == 8000
    assert result.deviation == pytest.approx(math.sqrt((2 + (1 / 9 + 1 / 400) / 2) / 8000))
    # Noise of three instead of four nodes does not fit, nor noise of twice the variance.
    assert not moments(math.sqrt(3 / 4)).fits
    assert not moments(math.sqrt(2)).fits
    assert not noise_moments([(np.random.default_rng(0).normal(0.1, 1, 4000), 100.0)]).fits


@pytest.mark.slow
def test_epsilon_equals_closed_form_for_minimum_clients(exported):
    """See Agarwal et al. 2021, Theorem 3.5, and Canonne et al. 2020, Proposition 12."""
    entry = json.loads((exported / "manifest.json").read_text())["privacy"]["differential_privacy"]
    noise = parse_node_noise(read_manifest(exported))
    assert (entry["fewest_clients"], entry["noise_clients"]) == (3, 4)

    def epsilon(sums: int) -> float:
        result = []
        for a in [1 + x / 10 for x in range(1, 100)] + list(range(11, 65)):
            divergence = 0.0
            for group, values in zip(noise.groups, entry["groups"]):
                mu, d = 3 * group.variance, values["values"]
                c = values["clip_in_steps"]
                # Kairouz, Liu, Steinke 2021, Proposition 22, with beta = e^-8.
                l2 = min(
                    c + math.sqrt(d),
                    math.sqrt(c**2 + d / 4 + math.sqrt(2 * 8) * (c + math.sqrt(d) / 2)),
                )
                assert group.largest_squared_norm == math.floor(l2**2)
                l1 = l2 * min(math.sqrt(d), l2)
                rest = ((2 * a - 1) * l2**2 + 6 * l1) / (4 * mu**2)
                divergence += a * l2**2 / (2 * mu) + min(rest, 3 * l1 / (2 * mu))
            log = math.log(entry["delta"] * a) / (a - 1)
            result.append(sums * divergence + math.log1p(-1 / a) - log)
        return min(result)

    assert entry["epsilon_after"] == pytest.approx([epsilon(1), epsilon(2)], rel=1e-3)
    z = 1.0 * math.sqrt(3 / 4)
    assert noise.noise_multiplier == pytest.approx(z, rel=2e-3)


@pytest.mark.slow
def test_node_rejects_low_noise_multiplier(fleet):
    required = PrivacyRequirements(min_noise_multiplier=0.9)
    settings = fleet.node_settings(fleet.names[0], trust=True, privacy=required)
    with pytest.raises(PlanError, match="min_noise_multiplier: expected at least 0"):
        fleet.node(settings)


def test_export_has_no_noise_key(exported):
    state = read_checkpoint(exported / "server_state.ckpt", "the state")
    assert not state["server/aggregations/0/noise_key"].any()
    manifest = json.loads((exported / "manifest.json").read_text())
    assert not any("noise_key" in name for name in manifest["tensors"]["client_input"])


@pytest.mark.slow
def test_private_plan_passes_verification(exported):
    outcome = call(f"--plan={exported}", "--verify", "--trust")
    assert outcome.status == 0, outcome
