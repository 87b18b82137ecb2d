"""Rounds of the two kinds of plans, against values worked out by hand."""

import math
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.client import clients_in
from plan_runner.errors import PlanError
from plan_runner.export import ROUNDING, TensorType, open_export, read_arrays
from plan_runner.graph_session import read_checkpoint, type_of, write_checkpoint
from plan_runner.rounds import (
    conformance_clients,
    relative_difference,
    run_rounds,
    verify,
)
from tests.plan_runner.exports import MEANS, SECURE_MEANS, STATE, rehash, write_export
from tests.plan_runner.plans import daf_plan, spec


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "means"), [("daf", MEANS), ("secure", SECURE_MEANS)])
def test_rounds_follow_the_contract(exports, profile, means):
    export = open_export(exports[profile])
    clients = conformance_clients(export)
    results = list(run_rounds(export, [clients] * 3))
    assert [float(result.state["server/0"]) for result in results] == means
    assert [int(result.state["server/1"]) for result in results] == [1, 2, 3]
    assert [int(result.metrics["metrics/count"]) for result in results] == [3, 3, 3]
    assert {(result.number, result.clients) for result in results} == {(1, 3), (2, 3), (3, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_the_conformance_rounds_match(exports, profile):
    checks = list(verify(open_export(exports[profile])))
    assert [check.differing for check in checks] == [{}, {}, {}]
    assert [check.tensors for check in checks] == [4 if profile == "daf" else 3] * 3


@pytest.mark.slow
def test_bytes_are_those_of_the_checkpoints_and_of_packed_secure_values(exports):
    daf, secure = (
        next(run_rounds(export, [conformance_clients(export)]))
        for export in (open_export(exports["daf"]), open_export(exports["secure"]))
    )
    assert daf.bytes_down == secure.bytes_down > 4
    assert daf.bytes_up > 12
    # Three clients of 8 bits need a modulus of 10 bits: two bytes for each of two tensors.
    assert secure.bytes_up == 4


def test_a_client_alone_and_another_state(exports, tmp_path):
    export = open_export(exports["daf"])
    clients = clients_in(exports["daf"] / "conformance" / "clients", export.manifest.features)
    # A name that TensorFlow would take for a pattern.
    state = tmp_path / "state[1].ckpt"
    plain = tmp_path / "plain"
    tensors = {"server/0": np.array(5.0, np.float32), "server/1": np.array(7, np.int64)}
    write_checkpoint(plain, tensors)
    plain.rename(state)
    (result,) = run_rounds(export, [[clients["ann"]]], state)
    assert float(result.state["server/0"]) == 1.5
    assert int(result.state["server/1"]) == 8


@pytest.mark.slow
def test_going_on_from_a_saved_state_is_going_on(exports, tmp_path):
    export = open_export(exports["secure"])
    cohorts = [conformance_clients(export)] * 3
    *_, whole = run_rounds(export, cohorts)
    *_, first = run_rounds(export, cohorts[:2])
    write_checkpoint(tmp_path / "state", first.state)
    assert set(read_checkpoint(tmp_path / "state", "state")) == set(STATE)
    (second,) = run_rounds(export, cohorts[2:], tmp_path / "state")
    assert second.state == whole.state


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_a_round_without_clients_is_refused(exports, profile):
    with pytest.raises(PlanError, match=r"^round 1: expected at least 1 client, found 0$"):
        list(run_rounds(open_export(exports[profile]), [[]]))


# --- What is said of rounds that do not match


@pytest.fixture
def folder(exports, tmp_path):
    return shutil.copytree(exports["daf"], tmp_path / "export")


def checked(folder, **tensors):
    """The checks of the second round, after its expected tensors were changed."""
    path = folder / "conformance" / "round_2.npz"
    expected = {**read_arrays(path), **tensors}
    np.savez(path, **{name: value for name, value in expected.items() if value is not None})
    rehash(folder)
    first, second, third = verify(open_export(folder))
    assert first.differing == third.differing == {}
    return second


@pytest.mark.slow
def test_a_difference(folder):
    check = checked(folder, **{"server/0": np.float32(2.5)})
    assert check.differing == {"server/0": 0.2}
    assert check.tensors == 4
    assert check.failing(0.0) == check.failing(ROUNDING) == check.failing(0.1) == ["server/0"]
    assert check.failing(0.2) == []


@pytest.mark.slow
def test_last_bits_are_rounding(folder):
    check = checked(folder, **{"server/0": np.nextafter(np.float32(2.0), np.float32(3.0))})
    assert check.failing(0.0) == ["server/0"]
    assert check.failing(ROUNDING) == []


@pytest.mark.slow
def test_zeros_of_other_signs_differ_by_a_bit(folder):
    loss = np.array([-0.0, np.nan], np.float32)
    check = checked(folder, **{"metrics/loss": loss})
    assert check.differing == {"metrics/loss": 0.0}
    assert check.failing(0.0) == ["metrics/loss"]
    assert check.failing(1e-9) == []


@pytest.mark.slow
def test_nans_are_compared_by_their_bits(folder):
    loss = np.array([0.0, np.nan], np.float32)
    loss.view(np.uint32)[1] |= 1
    assert checked(folder, **{"metrics/loss": loss}).differing == {"metrics/loss": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tensors",
    [
        {"server/0": None},
        {"server/0": np.float64(2.0)},
        {"server/0": np.array([2.0], np.float32)},
        {"server/0": np.float32(np.nan)},
        {"server/0": np.float32(np.inf)},
        # Integers are exact.
        {"server/1": np.array(3)},
    ],
)
def test_what_no_tolerance_lets_pass(folder, tensors):
    check = checked(folder, **tensors)
    (name,) = tensors
    assert check.differing == {name: math.inf}
    assert check.failing(1e30) == check.failing(math.inf) == [name]


@pytest.mark.slow
def test_a_tensor_too_many(folder):
    check = checked(folder, **{"server/2": np.float32(2.0)})
    assert check.differing == {"server/2": math.inf}
    assert check.tensors == 5


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        # Of the largest number expected, whatever its sign and whichever number differs.
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([1.0], [4.0], 3.0),
        ([4.0], [1.0], 0.75),
        # Of 0.01 at least: what should be 0 has no size to compare with.
        ([0.0], [1e-9], 1e-7),
        ([0.005], [0.006], 0.1),
        # Infinities and NaNs stand where they stand, and are no size.
        ([2.0, np.inf], [1.5, np.inf], 0.25),
        ([np.inf], [-np.inf], math.inf),
        ([1.0], [np.inf], math.inf),
        ([np.nan], [np.nan], 0.0),
        ([np.nan, 2.0], [np.nan, 1.0], 0.5),
        ([np.nan], [1.0], math.inf),
        (np.array([], np.float32), np.array([], np.float32), 0.0),
        (np.float32(1), np.float64(1), math.inf),
        ([1.0], [[1.0]], math.inf),
        # Only floats are rounded.
        (np.array([2**53 + 1]), np.array([2**53]), math.inf),
        ([True], [False], math.inf),
        ([b"a"], [b"b"], math.inf),
    ],
)
def test_relative_differences(expected, found, difference):
    result = relative_difference(np.asarray(expected), np.asarray(found))
    assert result == pytest.approx(difference)


def test_a_client_whose_examples_are_wrong(folder):
    (folder / "conformance" / "clients" / "bob.tfrecord").write_bytes(b"nonsense")
    rehash(folder)
    with pytest.raises(PlanError, match=r"bob.tfrecord: expected a TFRecord file"):
        list(verify(open_export(folder)))


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04"])
def test_expected_tensors_that_are_none(folder, content):
    (folder / "conformance" / "round_1.npz").write_bytes(content)
    rehash(folder)
    with pytest.raises(PlanError, match=r"round_1.npz: expected an .npz file, cannot read it"):
        list(verify(open_export(folder)))


def test_pickles_are_not_loaded(folder):
    np.savez(folder / "conformance" / "round_1.npz", a=np.array([{}], object))
    rehash(folder)
    with pytest.raises(PlanError, match=r"round_1.npz: expected an .npz file, cannot read it"):
        list(verify(open_export(folder)))


# --- A plan as the platform's own builder writes it, made here by hand, is played


v1, raw = tf.compat.v1, tf.raw_ops
# Names of Google's own; what they hold is the test's.
_TYPE, _ORDER = "brella_tff_type_signature", "brella_tensor_ordering"
_METADATA = {_TYPE: b"<float32,int64>", _ORDER: b"server/0,server/1"}
_PATHS = {
    "prepare": (
        "server_state_input_filepath",
        "server_prepare_output_filepath",
        "server_intermediate_state_output_filepath",
    ),
    "result": (
        "server_intermediate_state_input_filepath",
        "aggregate_result_input_filepath",
        "server_state_output_filepath",
    ),
}
_SAVE_STATE = "save_server_state_tensors"


def _restore(path: tf.Tensor, name: str, dtype: Any) -> tf.Tensor:
    (value,) = raw.RestoreV2(
        prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
    )
    return value


def _save(path: tf.Tensor, tensors: dict[str, Any], name: str) -> tf.Operation:
    empty = ["" for _ in tensors]
    return raw.SaveSlices(
        filename=path,
        tensor_names=list(tensors),
        shapes_and_slices=empty,
        data=list(tensors.values()),
        name=name,
    )


def _prepare_graph() -> bytes:
    with tf.Graph().as_default() as graph:
        state, client, kept = (v1.placeholder(tf.string, [], name) for name in _PATHS["prepare"])
        values = [_restore(state, f"server/{i}", d) for i, d in enumerate((tf.float32, tf.int64))]
        _save(client, {"client/0": values[0]}, "save_prepared_values_tensors")
        of_state = {f"intermediate_state/{i}": value for i, value in enumerate(values)}
        _save(kept, of_state, "save_intermediate_state_values_tensors")
    return graph.as_graph_def().SerializeToString()


def _result_graph() -> bytes:
    with tf.Graph().as_default() as graph:
        kept, sums, state = (v1.placeholder(tf.string, [], name) for name in _PATHS["result"])
        dtypes = tuple(enumerate((tf.float32, tf.int64)))
        mean, rounds = (_restore(kept, f"intermediate_state/{i}", d) for i, d in dtypes)
        total, count = (_restore(sums, f"intermediate_update/0/{i}", d) for i, d in dtypes)
        new = [mean + total / tf.cast(count, tf.float32), rounds + 1]
        metrics = {"loss": total, "count": count}
        handed_out = {name: tf.identity(value, f"server/{name}") for name, value in metrics.items()}
        variables = [v1.Variable(b"", name=_TYPE, use_resource=True)]
        variables.append(v1.Variable(_METADATA[_ORDER], name=_ORDER, use_resource=True))
        initialize = v1.variables_initializer(variables, "initialize_metadata_vars")
        with tf.control_dependencies([initialize]):
            assign = variables[0].assign(_METADATA[_TYPE])
        tensors = {
            "server/0": new[0],
            "server/1": new[1],
            **{f"metrics/{name}": value for name, value in handed_out.items()},
        }
        with tf.control_dependencies([assign.op]):
            for name, variable in zip((_TYPE, _ORDER), variables):
                tensors[name] = variable.read_value()
            _save(state, tensors, _SAVE_STATE)
    return graph.as_graph_def().SerializeToString()


def _platform_plan() -> plan_pb2.Plan:
    plan = daf_plan()
    plan.ClearField("tensorflow_config_proto")
    plan.server_graph_prepare_bytes.value = _prepare_graph()
    plan.server_graph_result_bytes.value = _result_graph()
    phase = plan.phase[0].server_phase_v2
    for name, router, graph_spec in (
        ("prepare", phase.prepare_router, phase.tensorflow_spec_prepare),
        ("result", phase.result_router, phase.tensorflow_spec_result),
    ):
        graph_spec.Clear()
        for field, path in zip(router.DESCRIPTOR.fields, _PATHS[name]):
            setattr(router, field.name, f"{path}:0")
            graph_spec.input_tensor_specs.append(spec(f"{path}:0", tf.string))
    phase.tensorflow_spec_prepare.target_node_names.extend(
        ["save_prepared_values_tensors", "save_intermediate_state_values_tensors"]
    )
    result = phase.tensorflow_spec_result
    result.target_node_names.append(_SAVE_STATE)
    for name, dtype in (("server/loss:0", tf.float32), ("server/count:0", tf.int64)):
        result.output_tensor_specs.append(spec(name, dtype))
    return plan


@pytest.fixture
def folder_of_platform(tmp_path):
    folder_of_platform = write_export(tmp_path / "export", _platform_plan(), "daf")
    state = {**STATE, **{name: np.array(value) for name, value in _METADATA.items()}}
    write_checkpoint(folder_of_platform / "server_state.ckpt", state)
    types = {name: type_of(np.asarray(value)) for name, value in state.items()}
    metrics = {"metrics/loss": TensorType("float32", ()), "metrics/count": TensorType("int64", ())}
    tensors = {
        group: {name: {"dtype": t.dtype, "shape": list(t.shape)} for name, t in kinds.items()}
        for group, kinds in (("server_state", types), ("metrics", metrics))
    }
    rehash(folder_of_platform, tensors=tensors)
    return folder_of_platform


@pytest.mark.slow
def test_it_is_played_as_one_of_ours(folder_of_platform):
    export = open_export(folder_of_platform)
    results = list(run_rounds(export, [conformance_clients(export)] * 3))
    assert [float(result.state["server/0"]) for result in results] == MEANS
    assert [float(result.outputs["server/loss"]) for result in results] == [-24.0, 0.0, 0.0]
    for result in results:
        assert result.metrics["metrics/loss"] == result.outputs["server/loss"]
        assert result.outputs["server/count"] == result.metrics["metrics/count"] == 3


@pytest.mark.slow
def test_what_the_servers_tools_want_stays_in_the_state(folder_of_platform, tmp_path):
    export = open_export(folder_of_platform)
    *_, result = run_rounds(export, [conformance_clients(export)] * 2)
    path = tmp_path / "state.ckpt"
    write_checkpoint(path, result.state)
    written = read_checkpoint(path, "the state")
    assert {name: written[name].item() for name in _METADATA} == _METADATA
    (again,) = run_rounds(export, [conformance_clients(export)], path)
    assert float(again.state["server/0"]) == MEANS[2]
