"""Exports have plans with known contents, appear as whole folders, and count their bytes."""

import contextlib
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.export import open_export
from plan_runner.graph_session import CheckpointOp, GraphSession, read_checkpoint
from plan_runner.rounds import conformance_clients, run_rounds
from tests.deployment.kinds import NUM_DOMAINS, USUAL_ALGORITHMS
from tests.support.commands import tree
from tests.support.marks import usually
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import new_folder, read_json, tensorflow_writes
from tff_agnostic.deployment.compiled_plan import Variables, checkpoint_op, checkpoint_op_names
from tff_agnostic.deployment.graphs import write_checkpoint

# Ops that could send values out of a graph although nothing fetches the values.
_WAYS_OUT = re.compile(r"Save|Write|Print|PyFunc|Send|Queue|Summary|Rpc|Table|Debug")


def _plan(folder):
    return plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes())


def _graph(packed):
    graph_def = tf.compat.v1.GraphDef()
    assert packed.Unpack(graph_def)
    return graph_def


def _nodes(graph_def):
    return list(itertools.chain(graph_def.node, *(f.node_def for f in graph_def.library.function)))


def _saved_names(graph_def, save_node):
    [node] = [node for node in graph_def.node if node.name == save_node]
    by_name = {n.name: n for n in graph_def.node}
    names = tf.make_ndarray(by_name[node.input[1]].attr["value"].tensor)
    return {name.decode() for name in names}


def _spec_name(serialized):
    return TensorSpecProto.FromString(serialized).name


def _algorithms(profile):
    usual = [algorithm for algorithm, other in USUAL_ALGORITHMS if other == profile]
    return pytest.mark.parametrize("algorithm", usually(usual, ALGORITHMS))


@pytest.mark.slow_cases("stochastic_afl")
@pytest.mark.nightly_cases("delta_fl")
@_algorithms("daf")
def test_daf_plan_has_only_federated_sums(exported, algorithm):
    plan = _plan(exported("daf", algorithm=algorithm))
    [phase] = plan.phase
    assert not phase.HasField("server_phase")
    sums = phase.server_phase_v2.aggregations
    assert {aggregation.intrinsic_uri for aggregation in sums} == {"federated_sum"}
    assert not any(aggregation.inner_aggregations for aggregation in sums)

    # For each tensor that the clients write, the server has exactly one sum.
    spec = phase.client_phase.tensorflow_spec
    assert not spec.output_tensor_specs
    assert spec.example_selector.collection_uri == "app:/examples"
    graph_def = _graph(plan.client_graph_bytes)
    [save_node] = spec.target_node_names
    assert [n.name for n in _nodes(graph_def) if _WAYS_OUT.search(n.op)] == [save_node]
    summed = [_spec_name(arg.input_tensor) for a in sums for arg in a.intrinsic_args]
    assert sorted(summed) == sorted(_saved_names(graph_def, save_node))


@pytest.mark.slow
@_algorithms("secure")
def test_secure_plan_has_only_secure_sums(exported, algorithm):
    plan = _plan(exported("secure", algorithm=algorithm))
    [phase] = plan.phase
    assert not phase.HasField("server_phase_v2")
    client = phase.client_phase
    # Clients have no output file and no writing op.
    assert client.federated_compute.output_filepath_tensor_name == ""
    assert not client.tensorflow_spec.target_node_names
    nodes = _nodes(_graph(plan.client_graph_bytes))
    assert [node.name for node in nodes if _WAYS_OUT.search(node.op)] == []
    # Every returned tensor is summed securely, and the server reads only these sums.
    returned = {_spec_name(spec) for spec in client.tensorflow_spec.output_tensor_specs}
    configs = client.federated_compute.aggregations
    assert {name for name in configs if configs[name].HasField("secure_aggregation")} == returned
    assert set(configs) == returned
    server = phase.server_phase
    assert not server.HasField("read_update")
    assert server.aggregate_into_accumulators_op == ""
    channels = server.read_aggregated_update.side_channel_tensors
    assert set(channels) == returned
    assert {channel.WhichOneof("type") for channel in channels.values()} == {"secure_aggregand"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", usually(["logistic"], ["logistic", "lstm"]))
def test_manifest_bounds_equal_the_plans(exported, kind):
    folder = exported("secure", kind=kind)
    channels = _plan(folder).phase[0].server_phase.read_aggregated_update.side_channel_tensors
    privacy = read_json(folder / "manifest.json")["privacy"]
    moduli = {entry["tensor"]: entry["modulus"] for entry in privacy["secure_sums"]}
    assert moduli == {
        name: channel.secure_aggregand.fixed_modulus.modulus for name, channel in channels.items()
    }
    for entry in privacy["secure_sums"]:
        # The modulus exceeds the largest sum by a factor of 2 at most.
        max_sum = privacy["maximum_clients_per_round"] * (2 ** entry["bits"] - 1)
        assert max_sum < entry["modulus"] <= 2 * max_sum
        levels = (entry["to"] - entry["from"]) / entry["step"]
        assert levels < 2 ** entry["bits"]


# By default, devices get the TFLite graph only; client_graph="both" adds TensorFlow's graph.
@pytest.mark.nightly_cases("daf-how1")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "how"), [("daf", {}), ("daf", {"client_graph": "both"}), ("secure", {})]
)
def test_client_only_plan_equals_client_part_of_plan(exported, profile, how):
    folder = exported(profile, **how)
    plan = _plan(folder)
    content = (folder / "client_only_plan.pb").read_bytes()
    client_only = plan_pb2.ClientOnlyPlan.FromString(content)
    graph = plan.client_graph_bytes.value
    assert client_only.graph == (graph if how else b"")
    assert client_only.phase == plan.phase[0].client_phase
    assert client_only.tflite_graph == plan.client_tflite_graph_bytes != b""
    # The phase has no other fields, because the platform reserves them.
    assert {field.name for field, _ in client_only.phase.ListFields()} == {
        "tensorflow_spec",
        "federated_compute",
    }
    counts = read_json(folder / "manifest.json")["bytes_per_client_and_round"]
    assert counts["plan"]["bytes"] == len(content)


# --- Folders appear atomically


@pytest.mark.parametrize("name", ["new/in/new", "empty"])
def test_new_folder_appears_only_when_complete(tmp_path, name):
    (tmp_path / "empty").mkdir()
    for error in (UserError, KeyboardInterrupt):
        with pytest.raises(error), new_folder(tmp_path / name, "--flag") as path:
            (path / "file").write_text("half")
            raise error("stop")
        assert tree(tmp_path) == {"empty": None}
    with new_folder(tmp_path / name, "--flag") as path:
        (path / "file").write_text("whole")
        assert not (tmp_path / name / "file").exists()
    assert (tmp_path / name / "file").read_text() == "whole"
    assert not [name for name in tree(tmp_path) if ".tmp" in name]


@pytest.mark.parametrize("name", ["full", "full/file"])
def test_new_folder_rejects_existing_content(tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    message = r"^--flag: expected a new or empty folder, found "
    with pytest.raises(UserError, match=message), new_folder(tmp_path / name, "--flag"):
        raise AssertionError("nothing should be written")
    assert tree(tmp_path) == {"full": None, "full/file": b"mine"}


def test_tensorflow_write_errors_become_user_errors(tmp_path):
    for write in (
        lambda path: write_checkpoint(path, {"a": tf.zeros([])}),
        lambda path: tf.io.TFRecordWriter(str(path)).close(),
    ):
        with (
            pytest.raises(UserError, match=r"/new: cannot write: No such file or directory$"),
            new_folder(tmp_path / "new", "--flag") as path,
            tensorflow_writes(),
        ):
            write(path / "missing" / "file")
    assert tree(tmp_path) == {}


# --- Savepoints and checkpoints restore the variables of a server's graph


_SPECS = [tf.TensorSpec([2], tf.float32, "server/a"), tf.TensorSpec([], tf.int64, "server/b")]
_METRICS = [tf.TensorSpec([], tf.float32, "metrics/m")]


@pytest.fixture
def session():
    """Yields a session and its savepoint; the state is [1, 2] and 3, and the metric is 0.5."""
    with tf.Graph().as_default() as graph:
        state, metrics = Variables(_SPECS), Variables(_METRICS)
        message = checkpoint_op("savepoint", state, also_saved=metrics)
        message.before_restore_op = tf.group(
            *state.initialize(), *metrics.initialize(), name="init"
        ).name
        values = [tf.constant([1.0, 2.0]), tf.constant(3, tf.int64)]
        tf.group(*state.assign(values), *metrics.assign([tf.constant(0.5)]), name="set")
        a, b = state.read()
        # Each new value depends on the other variable's old value.
        tf.group(
            *state.assign([a[::-1] + tf.cast(b, tf.float32), b + tf.cast(a[0], b.dtype)]),
            name="swap",
        )
        tf.group(*state.add([tf.ones([2]), tf.constant(10, tf.int64)]), name="increase")
        for name, value in zip(("a", "b", "m"), [*state.read(), *metrics.read()]):
            tf.identity(value, name)
    for name in checkpoint_op_names(message):
        graph.as_graph_element(name)
    with contextlib.closing(GraphSession(graph, "here")) as session:
        session.run(["init"], {})
        session.run(["set"], {})
        yield session, CheckpointOp(message, "here: savepoint")


def _values(session):
    return [np.asarray(value).tolist() for value in session.run(["a:0", "b:0", "m:0"], {})]


def test_savepoint_restores_state_without_metrics(session, tmp_path):
    session, savepoint = session
    savepoint.save(session, tmp_path / "checkpoint")
    saved = read_checkpoint(tmp_path / "checkpoint", "here")
    assert {name: value.tolist() for name, value in saved.items()} == {
        "server/a": [1.0, 2.0],
        "server/b": 3,
        "metrics/m": 0.5,
    }
    session.run(["increase"], {})
    assert _values(session) == [[2.0, 3.0], 13, 0.5]
    savepoint.restore(session, tmp_path / "checkpoint")
    assert _values(session) == [[1.0, 2.0], 3, 0.0]


def test_checkpoint_with_missing_variable_raises(session, tmp_path):
    session, savepoint = session
    with tf.device("CPU:0"):
        tf.raw_ops.SaveSlices(
            filename=str(tmp_path / "other"),
            tensor_names=["server/a"],
            shapes_and_slices=[""],
            data=[tf.zeros([2])],
        )
    with pytest.raises(
        PlanError, match=r"^here: savepoint: the graph failed \(NotFoundError: .*server/b"
    ):
        savepoint.restore(session, tmp_path / "other")


def test_variables_are_assigned_simultaneously(session):
    session, _ = session
    for _ in range(20):
        session.run(["set"], {})
        session.run(["swap"], {})
        assert _values(session)[:2] == [[5.0, 4.0], 4]


# --- The manifest's byte counts equal measured ones


def _counts(folder):
    return read_json(folder / "manifest.json")["bytes_per_client_and_round"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "size"), [("daf", "checkpoint_bytes"), ("secure", "payload_bytes")]
)
def test_manifest_bytes_equal_measured_bytes(exported, profile, size):
    folder = exported(profile)
    counts, export = _counts(folder), open_export(folder)
    (measured,) = run_rounds(export, [conformance_clients(export)])
    assert measured.bytes_down == pytest.approx(counts["down"]["checkpoint_bytes"], rel=0.02)
    assert measured.bytes_up == pytest.approx(counts["up"][size], rel=0.02)


def test_manifest_has_the_papers_counts_of_values(exported):
    """Devices receive w, alpha, 2 integers; they send delta, beta, L, N, accuracy, 4 counts."""
    counts = _counts(exported("daf"))
    num_weights = 4 * 3 + 3
    assert counts["down"]["values"] == num_weights + NUM_DOMAINS + 2
    assert counts["up"]["values"] == num_weights + 1 + 2 * NUM_DOMAINS + 2 * NUM_DOMAINS + 4
    assert counts["paper"]["values"] == 2 * num_weights + 4 * NUM_DOMAINS
    assert counts["up"]["payload_bytes"] == 4 * counts["up"]["values"] + 4 * (NUM_DOMAINS + 4)
