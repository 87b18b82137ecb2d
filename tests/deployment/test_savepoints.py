"""Variables of a server's graph go to checkpoints and come back."""

import numpy as np
import pytest
import tensorflow as tf

from plan_runner.errors import PlanError
from plan_runner.graph_session import CheckpointOp, GraphSession, read_checkpoint
from tff_agnostic.deployment.compiled_plan import Variables, checkpoint_op, checkpoint_op_names

_SPECS = [tf.TensorSpec([2], tf.float32, "server/a"), tf.TensorSpec([], tf.int64, "server/b")]
_METRICS = [tf.TensorSpec([], tf.float32, "metrics/m")]


@pytest.fixture
def session():
    """A session whose state is [1, 2] and 3, and its metric 0.5."""
    with tf.Graph().as_default() as graph:
        state, metrics = Variables(_SPECS), Variables(_METRICS)
        message = checkpoint_op("savepoint", state, also_saved=metrics)
        message.before_restore_op = tf.group(
            *state.initialize(), *metrics.initialize(), name="init"
        ).name
        values = [tf.constant([1.0, 2.0]), tf.constant(3, tf.int64)]
        tf.group(*state.assign(values), *metrics.assign([tf.constant(0.5)]), name="set")
        a, b = state.read()
        # Each from the other, as they were before.
        tf.group(
            *state.assign([a[::-1] + tf.cast(b, tf.float32), b + tf.cast(a[0], b.dtype)]),
            name="swap",
        )
        tf.group(*state.add([tf.ones([2]), tf.constant(10, tf.int64)]), name="increase")
        for name, value in zip(("a", "b", "m"), [*state.read(), *metrics.read()]):
            tf.identity(value, name)
    for name in checkpoint_op_names(message):
        graph.as_graph_element(name)
    with GraphSession(graph, "here") as session:
        session.run(["init"], {})
        session.run(["set"], {})
        yield session, CheckpointOp(message, "here: savepoint")


def _values(session):
    return [np.asarray(value).tolist() for value in session.run(["a:0", "b:0", "m:0"], {})]


def test_what_is_saved_is_restored_and_what_is_only_saved_is_not(session, tmp_path):
    session, savepoint = session
    savepoint.save(session, tmp_path / "checkpoint")
    found = read_checkpoint(tmp_path / "checkpoint", "here")
    assert {name: value.tolist() for name, value in found.items()} == {
        "server/a": [1.0, 2.0],
        "server/b": 3,
        "metrics/m": 0.5,
    }
    session.run(["increase"], {})
    assert _values(session) == [[2.0, 3.0], 13, 0.5]
    savepoint.restore(session, tmp_path / "checkpoint")
    assert _values(session) == [[1.0, 2.0], 3, 0.0]


def test_a_checkpoint_without_the_variables(session, tmp_path):
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


def test_no_variable_is_set_before_all_values_are_computed(session):
    session, _ = session
    for _ in range(20):
        session.run(["set"], {})
        session.run(["swap"], {})
        assert _values(session)[:2] == [[5.0, 4.0], 4]
