"""The format of examples in exports; equal requests give exports with equal bytes."""

import os
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

from tests.support.commands import ROOT, tree
from tff_agnostic.base.errors import UserError
from tff_agnostic.deployment.client_graph import ExampleFormat

_COLUMNS = OrderedDict(
    x=OrderedDict(
        words=tf.TensorSpec([None, 3], tf.int32), image=tf.TensorSpec([None, 2, 2], tf.float32)
    ),
    y=tf.TensorSpec([None], tf.int64),
    domain_id=tf.TensorSpec([None], tf.int32),
)
_FORMAT = ExampleFormat(_COLUMNS, num_domains=2)


def _examples(size):
    rng = np.random.default_rng(0)
    return {
        "x": {
            "words": rng.integers(-5, 5, size=[size, 3]).astype(np.int32),
            "image": rng.normal(size=[size, 2, 2]).astype(np.float32),
        },
        "y": rng.integers(2**40, size=size),
        "domain_id": rng.integers(2, size=size).astype(np.int32),
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 5])
def test_parsed_examples_equal_written_examples(size, tmp_path):
    examples = _examples(size)
    path = tmp_path / "client.tfrecord"
    _FORMAT.write(path, examples)
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    assert len(records) == size
    parsed = _FORMAT.parse(tf.constant(records, tf.string, shape=[size]))
    written = [*examples["x"].values(), examples["y"], examples["domain_id"]]
    for column, expected in zip(parsed, written):
        assert column.dtype == expected.dtype
        np.testing.assert_array_equal(column, expected)


def test_example_format_lists_features():
    assert _FORMAT.features() == {
        "x/words": {"dtype": "int64", "shape": [3]},
        "x/image": {"dtype": "float32", "shape": [2, 2]},
        "y": {"dtype": "int64", "shape": []},
        "domain_id": {"dtype": "int64", "shape": []},
    }


def test_parser_rejects_invalid_examples():
    for domain_id in (-1, 2):
        examples = {**_examples(1), "domain_id": np.array([domain_id], np.int32)}
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 2\)"):
            _FORMAT.parse(tf.constant(list(_FORMAT.serialize(examples))))
    example = tf.train.Example.FromString(next(_FORMAT.serialize(_examples(1))))
    del example.features.feature["y"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="y"):
        _FORMAT.parse(tf.constant([example.SerializeToString()]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tf.TensorSpec([None, None], tf.float32), "expected one shape for all examples"),
        (tf.TensorSpec([None], tf.float64), "unknown dtype.*'float64'"),
    ],
)
def test_example_format_rejects_unsupported_columns(spec, message):
    with pytest.raises(UserError, match=message):
        ExampleFormat({**_COLUMNS, "y": spec}, num_domains=2)


# --- Equal export requests give equal bytes


# The order of the exports differs from the tests' order.
_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tests.deployment.kinds import make_request
from tff_agnostic.deployment.export import export
from tff_agnostic.runtimes.tff import TffRuntime
with TffRuntime() as runtime:
    for profile in ("secure", "daf"):
        export(Path(sys.argv[1]) / profile, make_request(profile), runtime)
"""


@pytest.mark.slow
def test_another_process_writes_equal_bytes(exported, tmp_path):
    subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    for profile in ("secure", "daf"):
        assert tree(exported(profile)) == tree(tmp_path / profile)
