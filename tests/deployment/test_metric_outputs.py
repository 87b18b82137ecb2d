"""A plan's metrics: one scalar per domain and one for all domains."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

from plan_runner import plan_pb2, rounds
from plan_runner.export import open_export, read_arrays
from tests.deployment.kinds import NUM_DOMAINS
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.deployment.metrics import overall_metrics, overall_value

_TRAIN = "metrics/client_work/train"
_ROUNDING = 1e-5


def _outputs(profile, folder):
    """Returns the names of the plan's outputs."""
    phase = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes()).phase[0]
    if profile == "secure":
        return [metric.stat_name for metric in phase.server_phase.metrics]
    names = []
    for content in phase.server_phase_v2.tensorflow_spec_result.output_tensor_specs:
        spec = TensorSpecProto.FromString(content)
        # The platform records element 0 of each output.
        assert not spec.shape.dim and not spec.shape.unknown_rank
        name, _, output = spec.name.partition(":")
        assert output == "0"
        names.append(name)
    return names


def _scalars(tensors):
    """Returns the metrics' elements by name and index."""
    return {
        "/".join(map(str, (name, *index))): value[index]
        for name, value in tensors.items()
        if name.startswith("metrics/")
        for index in np.ndindex(value.shape)
    }


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_plan_outputs_equal_the_runtimes_metrics(exported, profile, monkeypatch):
    folder = exported(profile)
    expected = read_arrays(folder / "conformance/round_1.npz")
    scalars = _scalars(expected)
    counts = expected[f"{_TRAIN}/num_examples"]
    scalars[f"{_TRAIN}/num_examples/overall"] = counts.sum()
    for name in ("loss", "accuracy"):
        scalars[f"{_TRAIN}/{name}/overall"] = np.average(
            expected[f"{_TRAIN}/{name}"], weights=counts
        )
    assert set(_outputs(profile, folder)) == set(scalars)

    export, outputs = open_export(folder), {}
    check = rounds.check_metrics

    def recorded(tensors, values, metrics, where):
        outputs.update(values)
        return check(tensors, values, metrics, where)

    monkeypatch.setattr(rounds, "check_metrics", recorded)
    list(rounds.run_rounds(export, [rounds.conformance_clients(export)]))
    assert set(outputs) == set(scalars)
    for name, value in scalars.items():
        np.testing.assert_allclose(outputs[name], value, rtol=_ROUNDING, atol=_ROUNDING)
    assert outputs[f"{_TRAIN}/num_examples/overall"] == 22
    assert outputs[f"{_TRAIN}/num_examples/{NUM_DOMAINS - 1}"] == counts[-1]


def test_overall_metrics_select_means_and_counts():
    def field(unit=Unit.NONE, present=True):
        return ReportField("q", "label", per_domain=True, unit=unit, needs_examples=present)

    quantities = {
        "train": {
            "loss": field(),
            "kept_out": field(Unit.EXAMPLES, False),
            "num_examples": field(Unit.EXAMPLES, False),
            "perplexity": field(Unit.FACTOR),
        },
        "weights": {"lambda": field(present=False)},
        "uncounted": {"loss": field()},
        "norm": ReportField("n", "label"),
    }
    assert list(overall_metrics(quantities)) == [
        ("train/loss", "train/kept_out"),
        ("train/kept_out", None),
        ("train/num_examples", None),
    ]


def test_overall_value_ignores_empty_domains():
    values, counts = tf.constant([1.0, np.nan, 4.0]), tf.constant([1, 0, 2], tf.int64)
    assert overall_value(values, counts).numpy() == 3.0
    assert overall_value(counts, None).numpy() == 3
    assert overall_value(values, tf.zeros([3], tf.int64)).numpy() == 0.0
