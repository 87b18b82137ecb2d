"""Lazy imports of large packages."""

import pickle
import subprocess
import sys

import pytest
import tensorflow

from tff_agnostic.base import later


def test_lazy_attributes_equal_the_packages():
    assert later.tf.constant is tensorflow.constant
    assert later.matplotlib.figure.Figure is sys.modules["matplotlib.figure"].Figure
    with pytest.raises(AttributeError, match="module 'tensorflow' has no attribute 'no_such_name'"):
        _ = later.tf.no_such_name


def test_lazy_package_is_pickled_as_the_package():
    assert pickle.loads(pickle.dumps(later.tf)) is tensorflow


@pytest.mark.slow
def test_concurrent_threads_share_one_import():
    script = """
import threading
from tff_agnostic.base.later import scipy
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
