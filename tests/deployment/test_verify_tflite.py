"""Verifying an export runs what devices get, and says how it compares."""

import shutil

import pytest

from plan_runner import plan_pb2
from plan_runner.kernel import kernel_problem
from tests.marks import usually
from tests.plan_runner.exports import rehash
from tests.plan_runner.harness import call

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def kernel():
    if kernel_problem():
        pytest.skip(kernel_problem())


@pytest.mark.parametrize("profile", usually(["daf"], ["daf", "secure"]))
def test_devices_send_what_was_verified(exported, profile):
    outcome = call(f"--plan={exported(profile)}", "--verify")
    assert outcome.status == 0, outcome
    verdict = outcome.out.splitlines()[-1]
    assert "; the TFLite graph that devices get: 12 clients up to rounding, " in verdict
    assert "TFLite" not in verdict.partition("not run:")[2]


@pytest.mark.nightly
def test_another_graph_for_devices(exported, tmp_path):
    """One of the same model that takes fewer of a client's examples."""
    folder = shutil.copytree(exported("daf"), tmp_path / "export")
    other = exported("daf", max_examples=5) / "client_only_plan.pb"
    graph = plan_pb2.ClientOnlyPlan.FromString(other.read_bytes()).tflite_graph
    for name, message, field in (
        ("plan.pb", plan_pb2.Plan, "client_tflite_graph_bytes"),
        ("client_only_plan.pb", plan_pb2.ClientOnlyPlan, "tflite_graph"),
    ):
        content = message.FromString((folder / name).read_bytes())
        setattr(content, field, graph)
        (folder / name).write_bytes(content.SerializeToString())
    rehash(folder)
    outcome = call(f"--plan={folder}", "--verify")
    assert outcome.status == 1
    verdict = outcome.out.splitlines()[-1]
    assert verdict.startswith("NOT verified: client_only_plan.pb: the TFLite graph that devices")
    assert "sends other numbers" in verdict
