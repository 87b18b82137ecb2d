"""The TFLite graph of an export, in TFLite's interpreter with this project's kernel."""

import shutil

import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.python.framework import op_def_registry

from plan_runner import plan_pb2
from plan_runner.client import ClientGraph
from plan_runner.export import open_export
from plan_runner.kernel import kernel_problem
from plan_runner.rounds import conformance_clients, run_rounds
from plan_runner.tflite import TfLiteClient
from tests.deployment.kinds import COMBINATIONS, KINDS
from tests.plan_runner.exports import rehash
from tests.plan_runner.harness import call
from tests.support.marks import usually
from tff_agnostic.deployment.client_graph import OP_NAME


@pytest.fixture(scope="module")
def kernel():
    problem = kernel_problem()
    if problem:
        pytest.skip(problem)


def _client_only_plan(folder):
    return plan_pb2.ClientOnlyPlan.FromString((folder / "client_only_plan.pb").read_bytes())


def _ops(content):
    """Yields (whether the op is built in, name of a custom op) for each op in a flatbuffer."""
    model = schema.Model.GetRootAs(content, 0)
    for i in range(model.OperatorCodesLength()):
        code = model.OperatorCodes(i)
        builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        yield builtin != schema.BuiltinOperator.CUSTOM, (code.CustomCode() or b"").decode()


@pytest.mark.nightly_cases("two_inputs-daf")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "profile"), usually([(kind, "daf") for kind in KINDS], COMBINATIONS)
)
def test_tflite_graph_has_known_ops_only(exported, kind, profile):
    content = _client_only_plan(exported(profile, kind=kind)).tflite_graph
    others = [name for is_builtin, name in _ops(content) if not is_builtin]
    assert f"Flex{OP_NAME}" in others
    for name in others:
        assert name.startswith("Flex")
        assert op_def_registry.get(name[len("Flex") :]) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_unknown_domain_id_fails_in_tflite(exported, tmp_path):
    folder = exported("daf")
    device, export = _client_only_plan(folder), open_export(folder)
    lite, checkpoints = TfLiteClient(device.tflite_graph, device.phase), []
    original_run = ClientGraph.run

    def recording_run(self, name, examples, checkpoint, update=None):
        checkpoints.append((list(examples), checkpoint.read_bytes()))
        return original_run(self, name, examples, checkpoint, update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientGraph, "run", recording_run)
        list(run_rounds(export, [conformance_clients(export)]))
    (record, *_), content = checkpoints[0]
    (tmp_path / "client.ckpt").write_bytes(content)
    example = tf.train.Example.FromString(record)
    for domain_id, fails in ((0, False), (3, True), (-1, True)):
        example.features.feature["domain_id"].int64_list.value[:] = [domain_id]
        records = [example.SerializeToString()]
        update = tmp_path / f"update_{domain_id}.ckpt"
        if fails:
            with pytest.raises(ValueError, match="the graph failed"):
                lite.run("bad", records, tmp_path / "client.ckpt", update)
        else:
            lite.run("good", records, tmp_path / "client.ckpt", update)
        assert update.is_file() is not fails


@pytest.mark.nightly
@pytest.mark.usefixtures("kernel")
def test_verification_rejects_another_tflite_graph(exported, tmp_path):
    """The replaced graph uses fewer examples of a client."""
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
