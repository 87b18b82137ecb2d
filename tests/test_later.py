"""Packages that are imported when something of them is first used."""

import pickle
import subprocess
import sys

import pytest
import tensorflow

from tff_agnostic import later


def test_its_names_are_those_of_the_package():
    assert later.tf.constant is tensorflow.constant
    assert later.matplotlib.figure.Figure is sys.modules["matplotlib.figure"].Figure
    with pytest.raises(AttributeError, match="module 'tensorflow' has no attribute 'no_such_name'"):
        _ = later.tf.no_such_name


def test_other_processes_get_the_package_itself():
    assert pickle.loads(pickle.dumps(later.tf)) is tensorflow


@pytest.mark.slow
def test_threads_that_use_it_first_at_once_get_one_package():
    script = """
import threading
from tff_agnostic.later import scipy
found, barrier = [], threading.Barrier(8)
def use():
    barrier.wait()
    found.append(scipy.special.ndtri)
threads = [threading.Thread(target=use) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(found), len(set(map(id, found))))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["8", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("first, has_jax", [("", False), ("import jax", True)])
def test_tensorflow_is_imported_without_collections_and_without_jax(tmp_path, first, has_jax):
    # Stand-ins: what is looked at is what a package finds while it is imported.
    (tmp_path / "jax.py").touch()
    (tmp_path / "tensorflow.py").write_text(
        "import gc\nCOLLECTS = gc.isenabled()\n"
        "try:\n    import jax\n    HAS_JAX = True\nexcept ImportError:\n    HAS_JAX = False\n"
    )
    script = f"""
import gc, sys
sys.path.insert(0, {str(tmp_path)!r})
{first}
from tff_agnostic.later import tf
print(tf.COLLECTS, tf.HAS_JAX, gc.isenabled(), gc.get_freeze_count())
import jax
print(jax.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", str(has_jax), "True", "0", "jax"]
