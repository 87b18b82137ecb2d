"""How examples are stored, and what a client's graph makes of them."""

import ast
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tff_agnostic.deployment
from tests.binaries.harness import ROOT, tree
from tests.deployment.kinds import make_request
from tests.marks import usually
from tff_agnostic.base.errors import UserError
from tff_agnostic.deployment.client_graph import ExampleFormat
from tff_agnostic.deployment.export import export

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
@pytest.mark.parametrize("size", [0, 1, 5])
def test_what_is_written_is_read(size, tmp_path):
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


def test_features_of_the_manifest():
    assert _FORMAT.features() == {
        "x/words": {"dtype": "int64", "shape": [3]},
        "x/image": {"dtype": "float32", "shape": [2, 2]},
        "y": {"dtype": "int64", "shape": []},
        "domain_id": {"dtype": "int64", "shape": []},
    }


@pytest.mark.parametrize("domain_id", [-1, 2])
def test_a_domain_that_does_not_exist(domain_id):
    examples = {**_examples(1), "domain_id": np.array([domain_id], np.int32)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 2\)"):
        _FORMAT.parse(tf.constant(list(_FORMAT.serialize(examples))))


def test_a_missing_feature():
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
def test_columns_that_cannot_be_stored(spec, message):
    with pytest.raises(UserError, match=message):
        ExampleFormat({**_COLUMNS, "y": spec}, num_domains=2)


# --- What writes exports knows algorithms, and neither tasks nor programs


_ALLOWED = {
    "tff_agnostic.aggregations",
    "tff_agnostic.base",
    "tff_agnostic.computations",
    "tff_agnostic.data",
    "tff_agnostic.deployment",
    "tff_agnostic.base.errors",
    "tff_agnostic.base.files",
    "tff_agnostic.base.later",
    "tff_agnostic.models",
    "tff_agnostic.privacy",
    "tff_agnostic.base.report_fields",
    "tff_agnostic.base.registry",
    "tff_agnostic.runtimes",
}


@pytest.mark.slow
def test_deployment_imports_no_task_and_no_program():
    (folder,) = tff_agnostic.deployment.__path__
    paths = sorted(Path(folder).rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # "from tff_agnostic import x" names its modules after the import.
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            own = [name.split(".")[:2] for name in names if name.startswith("tff_agnostic.")]
            found = {".".join(parts) for parts in own}
            found -= {"tff_agnostic.__version__", "tff_agnostic.versions"}
            assert found <= _ALLOWED, path


# --- The same request leads to the same bytes, in any process


_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tests.deployment.kinds import make_request
from tff_agnostic.deployment.export import export
from tff_agnostic.runtimes.tff import TffRuntime

with TffRuntime() as runtime:
    for kind, profile in (name.split("-") for name in sys.argv[2:]):
        folder = Path(sys.argv[1]) / f"{kind}-{profile}"
        export(folder, make_request(profile, kind=kind), runtime)
"""

# In another order than here: how many came before must not matter.
_EXPORTS = ("logistic-secure", "logistic-daf")


@pytest.fixture(scope="module")
def from_another_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(folder), *_EXPORTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("name", usually(["logistic-daf"], _EXPORTS))
def test_the_same_bytes(exported, from_another_process, name):
    kind, profile = name.split("-")
    assert tree(exported(profile, kind=kind)) == tree(from_another_process / name)


@pytest.mark.slow
def test_a_second_export_of_a_process(exported, tff_runtime, tmp_path):
    export(tmp_path / "again", make_request("daf"), tff_runtime)
    assert tree(tmp_path / "again") == tree(exported("daf"))
