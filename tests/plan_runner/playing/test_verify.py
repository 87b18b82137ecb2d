"""What is said of rounds that do not match."""

import math
import shutil

import numpy as np
import pytest

from plan_runner.errors import PlanError
from plan_runner.export import ROUNDING, open_export
from plan_runner.verify import read_tensors, relative_difference, verify
from tests.plan_runner.exports import rehash


@pytest.fixture
def folder(exports, tmp_path):
    return shutil.copytree(exports["daf"], tmp_path / "export")


def checked(folder, **tensors):
    """The checks of the second round, after its expected tensors were changed."""
    path = folder / "conformance" / "round_2.npz"
    expected = {**read_tensors(path), **tensors}
    np.savez(path, **{name: value for name, value in expected.items() if value is not None})
    rehash(folder)
    first, second, third = verify(open_export(folder))
    assert first.differing == third.differing == {}
    return second


def test_a_difference(folder):
    check = checked(folder, **{"server/0": np.float32(2.5)})
    assert check.differing == {"server/0": 0.2}
    assert check.tensors == 4
    assert check.failing(0.0) == check.failing(ROUNDING) == check.failing(0.1) == ["server/0"]
    assert check.failing(0.2) == []


def test_last_bits_are_rounding(folder):
    check = checked(folder, **{"server/0": np.nextafter(np.float32(2.0), np.float32(3.0))})
    assert check.failing(0.0) == ["server/0"]
    assert check.failing(ROUNDING) == []


def test_zeros_of_other_signs_differ_by_a_bit(folder):
    loss = np.array([-0.0, np.nan], np.float32)
    check = checked(folder, **{"metrics/loss": loss})
    assert check.differing == {"metrics/loss": 0.0}
    assert check.failing(0.0) == ["metrics/loss"]
    assert check.failing(1e-9) == []


def test_nans_are_compared_by_their_bits(folder):
    loss = np.array([0.0, np.nan], np.float32)
    loss.view(np.uint32)[1] |= 1
    assert checked(folder, **{"metrics/loss": loss}).differing == {"metrics/loss": 0.0}


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
