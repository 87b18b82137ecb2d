"""The examples in the public names' docstrings print their outputs."""

import doctest
import sys

import numpy as np
import pytest

import tff_agnostic


@pytest.fixture(scope="module")
def scope(streaming_runtime):
    """The variables that examples use: arrays of four clients, a problem, and others."""
    keras = pytest.importorskip("tensorflow").keras
    from tff_agnostic.models import logistic_regression

    rng = np.random.default_rng(0)
    arrays = {
        f"client {k}": {
            "x": rng.normal(size=(10 - k, 4)),
            "y": rng.integers(2, size=10 - k),
            "domain_id": np.repeat([0, 1], [5, 5 - k]),
        }
        for k in range(4)
    }
    names = {name: getattr(tff_agnostic, name) for name in tff_agnostic.__all__}
    names |= {
        "np": np,
        "keras": keras,
        "arrays": arrays,
        "runtime": streaming_runtime,
        "logistic_regression": logistic_regression,
    }
    names["network"] = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    problem, clients = names["classification"](names["network"], arrays, ["common", "rare"])
    algorithm = names["agnostic_fed_avg"](problem, names["AgnosticFedAvgOptions"]())
    return names | {"problem": problem, "clients": clients, "algorithm": algorithm}


@pytest.mark.slow_cases("build_learning_process")
@pytest.mark.parametrize("name", tff_agnostic.__all__)
def test_example_prints_its_output(scope, name):
    described = getattr(tff_agnostic, name)
    module = vars(sys.modules[described.__module__])
    (example,) = doctest.DocTestFinder(recurse=False).find(
        described, name, globs={**module, **scope}
    )
    assert example.examples
    results = doctest.DocTestRunner().run(example)
    assert not results.failed
