"""Rounds of an export in plain TensorFlow are those of TFF's runtime.

What is registered takes part without an edit here: algorithms and profiles.
"""

import numpy as np
import pytest

from plan_runner.export import open_export
from plan_runner.verify import read_tensors, verify
from tests.deployment import in_worker
from tests.deployment.kinds import (
    ALL_ALGORITHMS,
    COMBINATIONS,
    USUAL_ALGORITHMS,
    USUAL_COMBINATIONS,
)
from tests.selection import usually
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import NUM_ROUNDS

# Largest difference, relative to a tensor's largest number, between Python's TensorFlow and TFF's
# worker: two builds, whose kernels differ, and by how much depends on the processor.
_ROUNDING = 1e-5


def _checks(folder):
    checks = list(verify(open_export(folder)))
    assert len(checks) == NUM_ROUNDS
    assert all(check.tensors > 10 for check in checks)
    return checks


def _assert_bit_for_bit(folder):
    for check in _checks(folder):
        assert check.differing == {}


def _assert_up_to_rounding(folder):
    for check in _checks(folder):
        assert all(difference <= _ROUNDING for difference in check.differing.values())


@pytest.mark.parametrize(("algorithm", "profile"), usually(USUAL_ALGORITHMS, ALL_ALGORITHMS))
def test_every_algorithm(exported, algorithm, profile):
    _assert_up_to_rounding(exported(profile, algorithm=algorithm))


@pytest.mark.parametrize("profile", usually(["daf"], PROFILES))
def test_a_family_of_models(exported, profile):
    how = {"algorithm": "delta_fl", "threshold": "tracked", "conformity": (0.5, 1.0)}
    _assert_up_to_rounding(exported(profile, **how))


@pytest.mark.parametrize("server_optimizer", usually(["adam"], ["nesterov", "adam"]))
def test_server_optimizers_with_state(exported, server_optimizer):
    _assert_up_to_rounding(exported("daf", server_optimizer=server_optimizer))


@pytest.mark.parametrize(("kind", "profile"), usually(USUAL_COMBINATIONS, COMBINATIONS))
def test_every_kind_of_model_in_the_runtimes_tensorflow(exported, kind, profile, monkeypatch):
    folder = exported(profile, kind=kind)
    in_worker.use(monkeypatch)
    _assert_bit_for_bit(folder)


@pytest.mark.parametrize(("kind", "profile"), usually(USUAL_COMBINATIONS, COMBINATIONS))
def test_every_kind_of_model_in_plain_tensorflow(exported, kind, profile):
    _assert_up_to_rounding(exported(profile, kind=kind))


def test_the_state_moves(exported):
    """Otherwise all of the above would prove nothing."""
    folder = exported("daf")
    rounds = [read_tensors(folder / f"conformance/round_{n}.npz") for n in (1, 2, 3)]
    for before, after in zip(rounds, rounds[1:]):
        for name in (
            "server/algorithm/weights/trainable/0",
            "server/algorithm/domains/lambda_",
        ):
            assert not np.array_equal(before[name], after[name])


def test_max_examples_is_a_constant_of_the_plan(exported):
    """Of a client with more examples the first ones are used, by plan and runtime alike."""
    limited, unlimited = exported("daf", max_examples=5), exported("daf")
    _assert_up_to_rounding(limited)
    for name in ("conformance/clients/client_3.tfrecord", "server_state.ckpt"):
        assert (limited / name).read_bytes() == (unlimited / name).read_bytes()
    counts = [
        read_tensors(folder / "conformance/round_1.npz")["metrics/client_work/train/num_examples"]
        for folder in (limited, unlimited)
    ]
    # Of 7, 3, 0 and 12 examples.
    assert [count.sum() for count in counts] == [5 + 3 + 0 + 5, 7 + 3 + 0 + 12]
