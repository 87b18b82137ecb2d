"""A round's metrics as scalars: those of the runtime, and of all domains together."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

from plan_runner import daf, plan_pb2, secure
from plan_runner.export import open_export, read_arrays
from plan_runner.rounds import conformance_clients, run_rounds
from tests.deployment.kinds import NUM_DOMAINS
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.deployment.metrics import overall_metrics, overall_value

_TRAIN = "metrics/client_work/train"
_ROUNDING = 1e-5


def _outputs(profile, folder):
    """Names of what the plan itself says a server has to take."""
    phase = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes()).phase[0]
    if profile == "secure":
        return [metric.stat_name for metric in phase.server_phase.metrics]
    found = []
    for content in phase.server_phase_v2.tensorflow_spec_result.output_tensor_specs:
        spec = TensorSpecProto.FromString(content)
        # A server takes element 0 of each.
        assert not spec.shape.dim and not spec.shape.unknown_rank
        name, _, output = spec.name.partition(":")
        assert output == "0"
        found.append(name)
    return found


def _scalars(tensors):
    """Of the runtime's metrics, each number by the name that it has as a scalar."""
    return {
        "/".join(map(str, (name, *index))): value[index]
        for name, value in tensors.items()
        if name.startswith("metrics/")
        for index in np.ndindex(value.shape)
    }


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_scalars_of_a_round_are_the_runtimes(exported, profile, monkeypatch):
    folder = exported(profile)
    wanted = read_arrays(folder / "conformance/round_1.npz")
    scalars = _scalars(wanted)
    counts = wanted[f"{_TRAIN}/num_examples"]
    scalars[f"{_TRAIN}/num_examples/overall"] = counts.sum()
    for name in ("loss", "accuracy"):
        scalars[f"{_TRAIN}/{name}/overall"] = np.average(wanted[f"{_TRAIN}/{name}"], weights=counts)
    assert set(_outputs(profile, folder)) == set(scalars)

    export = open_export(folder)
    # With nothing but the outputs to take them from.
    module = {"daf": daf, "secure": secure}[profile]
    read = module.read_checkpoint
    monkeypatch.setattr(
        module,
        "read_checkpoint",
        lambda path, where: {
            name: value for name, value in read(path, where).items() if "metrics/" not in name
        },
    )
    (result,) = run_rounds(export, [conformance_clients(export)])
    found = {**_scalars(result.metrics), **result.outputs}
    assert set(found) == set(scalars)
    for name, value in scalars.items():
        np.testing.assert_allclose(found[name], value, rtol=_ROUNDING, atol=_ROUNDING)
    assert found[f"{_TRAIN}/num_examples/overall"] == 22
    assert found[f"{_TRAIN}/num_examples/{NUM_DOMAINS - 1}"] == counts[-1]


def test_which_metrics_have_a_value_of_all_domains():
    def of_domains(unit=Unit.NONE, present=True):
        return ReportField("q", "label", per_domain=True, unit=unit, needs_examples=present)

    quantities = {
        "train": {
            "loss": of_domains(),
            "kept_out": of_domains(Unit.EXAMPLES, False),
            "num_examples": of_domains(Unit.EXAMPLES, False),
            "perplexity": of_domains(Unit.FACTOR),
        },
        "weights": {"lambda": of_domains(present=False)},
        "uncounted": {"loss": of_domains()},
        "norm": ReportField("n", "label"),
    }
    assert list(overall_metrics(quantities)) == [
        ("train/loss", "train/kept_out"),
        ("train/kept_out", None),
        ("train/num_examples", None),
    ]


def test_a_domain_without_examples_has_no_part():
    values, counts = tf.constant([1.0, np.nan, 4.0]), tf.constant([1, 0, 2], tf.int64)
    assert overall_value(values, counts).numpy() == 3.0
    assert overall_value(counts, None).numpy() == 3
    assert overall_value(values, tf.zeros([3], tf.int64)).numpy() == 0.0
