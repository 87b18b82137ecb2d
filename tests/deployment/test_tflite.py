"""The TFLite graph of an export runs as it is, in TFLite's interpreter, with the op's kernel."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.python.framework import op_def_registry

from plan_runner import plan_pb2
from plan_runner.client import ClientGraph
from plan_runner.export import open_export
from plan_runner.graph_session import read_checkpoint
from plan_runner.kernel import kernel_problem
from plan_runner.rounds import conformance_clients, run_rounds
from plan_runner.tflite import TfLiteClient
from tests.deployment.kinds import ALL_ALGORITHMS, COMBINATIONS, KINDS, USUAL_COMBINATIONS
from tests.marks import usually
from tff_agnostic.deployment.client_graph import OP_NAME

# Largest difference, of a tensor's largest number or of 1: TFLite has kernels of its own.
_ROUNDING = 1e-5
_SIZES = [7, 3, 0, 12]


@pytest.fixture(scope="module")
def kernel():
    problem = kernel_problem()
    if problem:
        pytest.skip(problem)


def _client_only_plan(folder):
    return plan_pb2.ClientOnlyPlan.FromString((folder / "client_only_plan.pb").read_bytes())


def _ops(content):
    """The ops of a flatbuffer: whether TFLite has it itself, and its name if not."""
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
def test_every_op_is_tflites_or_tensorflows(exported, kind, profile):
    """Otherwise a client that resolves builtin and Flex ops only does not load the graph."""
    content = _client_only_plan(exported(profile, kind=kind)).tflite_graph
    others = [name for is_builtin, name in _ops(content) if not is_builtin]
    assert f"Flex{OP_NAME}" in others
    for name in others:
        assert name.startswith("Flex")
        assert op_def_registry.get(name[len("Flex") :]) is not None


def _largest_difference(expected, found):
    assert set(found) == set(expected)
    largest = 0.0
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        a, b = value.astype(np.float64), found[name].astype(np.float64)
        scale = max(1.0, np.max(np.abs(a), initial=0.0))
        largest = max(largest, np.max(np.abs(a - b), initial=0.0) / scale)
    return largest


def _assert_as_in_tensorflow(folder, monkeypatch):
    device = _client_only_plan(folder)
    lite = TfLiteClient(device.tflite_graph, device.phase)
    in_session, compared = ClientGraph.run, []

    def run_both(self, name, examples, checkpoint, update=None):
        results = in_session(self, name, examples, checkpoint, update)
        other = update and update.with_suffix(".lite")
        found = lite.run(name, examples, checkpoint, other)
        if update:
            results, found = read_checkpoint(update, name), read_checkpoint(other, name)
        assert _largest_difference(results, found) <= _ROUNDING
        compared.append(len(examples))
        return results

    monkeypatch.setattr(ClientGraph, "run", run_both)
    export = open_export(folder)
    list(run_rounds(export, [conformance_clients(export)]))
    assert compared == _SIZES


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("kind", "profile"), usually(USUAL_COMBINATIONS, COMBINATIONS))
def test_every_kind_of_model(exported, kind, profile, monkeypatch):
    _assert_as_in_tensorflow(exported(profile, kind=kind), monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("algorithm", "profile"), usually([("delta_fl", "daf")], ALL_ALGORITHMS))
def test_every_algorithm(exported, algorithm, profile, monkeypatch):
    _assert_as_in_tensorflow(exported(profile, algorithm=algorithm), monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_an_example_beyond_the_domains_fails_on_the_device(exported, tmp_path):
    folder = exported("daf")
    device, export = _client_only_plan(folder), open_export(folder)
    lite, checkpoints = TfLiteClient(device.tflite_graph, device.phase), []
    ends = ClientGraph.run

    def first(self, name, examples, checkpoint, update=None):
        checkpoints.append((list(examples), checkpoint.read_bytes()))
        return ends(self, name, examples, checkpoint, update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientGraph, "run", first)
        list(run_rounds(export, [conformance_clients(export)]))
    (record, *_), content = checkpoints[0]
    (tmp_path / "client.ckpt").write_bytes(content)
    example = tf.train.Example.FromString(record)
    for domain_id, is_refused in ((0, False), (3, True), (-1, True)):
        example.features.feature["domain_id"].int64_list.value[:] = [domain_id]
        records = [example.SerializeToString()]
        update = tmp_path / f"update_{domain_id}.ckpt"
        if is_refused:
            with pytest.raises(ValueError, match="the graph failed"):
                lite.run("bad", records, tmp_path / "client.ckpt", update)
        else:
            lite.run("good", records, tmp_path / "client.ckpt", update)
        assert update.is_file() is not is_refused
