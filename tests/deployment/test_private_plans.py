"""Plans of private runs add the runtime's noise, and have secret keys in one file only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plan_runner.export import open_export, read_arrays
from plan_runner.graph_session import read_checkpoint
from plan_runner.rounds import conformance_clients, run_rounds, verify
from plan_runner.tflite import relative_difference
from tests.deployment.kinds import make_request
from tests.support.marks import usually
from tests.support.sums import private_sum, secure_sum
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.base.files import read_json
from tff_agnostic.base.later import tff
from tff_agnostic.deployment import export as deployment_export
from tff_agnostic.deployment.export import ExportRequest, export
from tff_agnostic.deployment.graphs import write_checkpoint
from tff_agnostic.deployment.privacy import CONFORMANCE_KEY, FleetNoise, with_key
from tff_agnostic.deployment.rounds import synthetic_clients

pytestmark = pytest.mark.slow

_ROUNDING = 1e-5
_RUNS_KEY, _FLEETS_KEY = (
    (0x1A2B3C4D5E6F7788, 0x1122334455667799, 0x2B3C4D5E6F778811, 0x3344556677991122),
    (0x0F1E2D3C4B5A6978, 0x7766554433, 0x1E2D3C4B5A69780F, 0x66554433778899),
)
_KEY_TENSOR = "server/aggregations/0/noise_key"
_SETTINGS: dict[str, Any] = {"clip_norm": 0.5, "noise_multiplier": 0.8}


# Profiles and aggregations of private plans.
_KINDS = {
    "tree-daf": (
        "daf",
        private_sum("tree", PlainSum(), joint_clipping=True, noise_key=_RUNS_KEY, **_SETTINGS),
    ),
    "central-secure": (
        "secure",
        private_sum("central", secure_sum(), clipping="adaptive", noise_key=_RUNS_KEY, **_SETTINGS),
    ),
}


def _guarantee(state: Any) -> dict[str, Any]:
    return {"delta": 1e-3, "epsilon": 1.0, "rounds": int(state.round_num), "sampling": "as it is"}


@pytest.fixture(scope="module", params=usually(["tree-daf"], _KINDS))
def request_(request) -> ExportRequest:
    profile, aggregation = _KINDS[request.param]
    return make_request(profile, aggregation=aggregation, noise=FleetNoise(_FLEETS_KEY, _guarantee))


@pytest.fixture(scope="module")
def exported(request_, tff_runtime, tmp_path_factory) -> tuple[Path, dict[tuple[int, ...], bool]]:
    """The export, and whether others could read a state while it was written, by its noise key."""
    folder, readable = tmp_path_factory.mktemp("private") / "export", {}

    def watched(path: Path, tensors: Any) -> None:
        write_checkpoint(path, tensors)
        modes = [place.stat().st_mode & 0o077 for place in (path, path.parent)]
        readable[tuple(tensors[_KEY_TENSOR])] = all(modes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment_export, "write_checkpoint", watched)
        export(folder, request_, tff_runtime)
    return folder, readable


@pytest.fixture(scope="module")
def folder(exported) -> Path:
    return exported[0]


def test_other_users_cannot_read_the_secret_key(exported):
    assert exported[1] == {_FLEETS_KEY: False, CONFORMANCE_KEY: True}


def test_conformance_rounds_use_the_public_key(folder):
    checks = list(verify(open_export(folder)))
    assert len(checks) == 3
    for check in checks:
        assert all(difference <= _ROUNDING for difference in check.differing.values())
    for n in (1, 2, 3):
        tensors = read_arrays(folder / f"conformance/round_{n}.npz")
        assert tuple(tensors[_KEY_TENSOR]) == CONFORMANCE_KEY
        assert tensors["server/aggregations/0/releases"] == n


def test_private_rounds_equal_the_runtimes(folder, request_, streaming_runtime):
    """This includes a round without clients."""
    deployment = open_export(folder)
    training = streaming_runtime.training(request_.algorithm, request_.aggregation)
    state = with_key(training.initialize(), _FLEETS_KEY)
    clients = conformance_clients(deployment)
    columns = request_.algorithm.client_data_spec
    cohort = list(synthetic_clients(columns, request_.column_ranges, request_.num_domains).values())
    weights, moved = "server/algorithm/weights/trainable/0", []
    for result in run_rounds(deployment, [clients, clients, []]):
        state, _ = training.next(state, cohort if result.clients else [])
        moved.append(result.state[weights])
        # The manifest lists the state's tensors in TFF's order.
        flat = tff.structure.flatten(tff.structure.from_container(state, recursive=True))
        for name, value in zip(deployment.manifest.server_state, map(np.asarray, flat)):
            if value.dtype.kind == "f":
                assert relative_difference(value, result.state[name]) <= _ROUNDING, name
            else:
                np.testing.assert_array_equal(result.state[name], value, err_msg=name)
    public = read_arrays(folder / "conformance/round_2.npz")[weights]
    assert relative_difference(public, moved[1]) > 0.01
    # The round without clients adds noise.
    assert relative_difference(moved[1], moved[2]) > 1e-4


def test_only_the_state_contains_the_secret_key(folder):
    state = read_checkpoint(folder / "server_state.ckpt", "the state")
    assert tuple(state[_KEY_TENSOR]) == _FLEETS_KEY
    assert (folder / "server_state.ckpt").stat().st_mode & 0o077 == 0
    public = read_checkpoint(folder / "conformance/server_state.ckpt", "the state")
    assert tuple(public[_KEY_TENSOR]) == CONFORMANCE_KEY
    # In compressed checkpoints this search finds no key, so their tensors were compared above.
    for path in (p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        for number in (*_RUNS_KEY, *_FLEETS_KEY):
            assert str(number).encode() not in content, path
            for byte_order in ("little", "big"):
                assert number.to_bytes(8, byte_order) not in content, path


def test_private_manifest_has_guarantee_and_duties(folder, request_):
    manifest = read_json(folder / "manifest.json")
    # Devices receive the clip norms, but no key.
    sent = [name for name in manifest["tensors"]["client_input"] if "aggregation" in name]
    assert sent == ["client/aggregation"]
    facts = manifest["privacy"]["differential_privacy"]
    assert facts["mechanism"] == request_.aggregation.name
    assert facts["secret_files"] == ["server_state.ckpt"]
    assert facts["noise_multiplier"] == pytest.approx(0.8)
    multipliers = [group["noise_multiplier"] for group in facts["groups"]]
    assert sum(z**-2 for z in multipliers) ** -0.5 == pytest.approx(0.8)
    for group in facts["groups"]:
        deviation = group["noise_multiplier"] * group["clip_norm"]
        assert group["deviation"] == pytest.approx(deviation)
    assert any("server/aggregations/0/noise_key" in text for text in facts["server_must"])
    assert facts["clipped"] == (
        "as one vector" if request_.profile == "daf" else "each group by itself"
    )
    assert facts["noise_generator"].startswith("ChaCha20")
    assert "steps of a grid" in facts["noise"]
    if request_.profile == "secure":
        assert {s["tensor"].split("/")[1] for s in manifest["privacy"]["secure_sums"]} >= {"values"}
