"""Statistics of several runs, computed by hand."""

import json
import math

import numpy as np
import pytest

from tests.support.pages import client_values, result, write_run
from tff_agnostic.program.studies.comparison import read_trials, trial_folder, trial_name

_NAMES = ("phone", "tablet")


def _compare(folder, trials, **more):
    """Compares runs of one method, given as (loss, accuracy, examples) of each domain."""
    for k, domains in enumerate(trials):
        content = result(_NAMES, worst_min_examples=more.get("least", 1), seed=k)
        for name, (loss, accuracy, count) in zip(_NAMES, domains):
            content["domains"][name] |= {"loss": loss, "accuracy": accuracy, "num_examples": count}
        content["overall"] |= {"loss": 0.25 * (k + 1), "accuracy": 0.5}
        content |= more.get("changes", {})
        write_run(trial_folder(folder, "row", k).path, content, {"test/worst loss": [1.0] * 20})
    names = {"row": [trial_name("row", k) for k in range(len(trials))]}
    return read_trials(folder, names, {"row": "Row"}, {})


def test_trials_have_worst_domain_and_difference(tmp_path):
    comparison = _compare(
        tmp_path,
        [
            [(1.0, 0.9, 5), (2.0, 0.5, 5)],
            [(3.0, 0.7, 5), (2.5, 0.8, 5)],
            [(2.0, 0.8, 5), (3.0, 0.2, 5)],
        ],
    )
    trials = comparison.trials["row"]
    assert (trials.mean("phone", "loss"), trials.std("phone", "loss")) == (2.0, 1.0)
    assert trials.mean("(overall)", "loss") == pytest.approx(0.5)
    assert trials.values["(worst)"]["loss"].tolist() == [2.0, 3.0, 3.0]
    assert trials.values["(worst)"]["accuracy"].tolist() == [0.5, 0.7, 0.2]
    np.testing.assert_allclose(trials.values["(difference)"]["loss"], [1.0, 0.5, 1.0])
    np.testing.assert_allclose(trials.values["(difference)"]["accuracy"], [0.4, 0.1, 0.6])
    assert (comparison.label("row"), comparison.split, comparison.num_trials) == ("Row", "test", 3)


def test_small_domains_are_never_the_worst(tmp_path):
    comparison = _compare(
        tmp_path,
        [
            [(1.0, 0.9, 30), (2.0, 0.5, 9)],
            [(3.0, 0.7, 30), (2.5, 0.8, 10)],
            [(3.0, 0.7, 3), (None, None, 0)],
        ],
        least=10,
    )
    trials = comparison.trials["row"]
    np.testing.assert_array_equal(trials.values["(worst)"]["loss"], [1.0, 3.0, np.nan])
    np.testing.assert_array_equal(trials.values["(worst)"]["accuracy"], [0.9, 0.7, np.nan])
    np.testing.assert_array_equal(trials.values["(difference)"]["loss"], [0.0, 0.5, np.nan])
    assert comparison.not_counted == _NAMES
    # NaN becomes null, because JSON cannot represent NaN.
    content = json.loads(json.dumps(comparison.to_json(), allow_nan=False))["row"]
    assert content["tablet"]["loss"] == {"mean": None, "std": None, "trials": [2.0, 2.5, None]}


def test_distributions_over_clients_are_collected(tmp_path):
    values = client_values(np.random.default_rng(0))
    overall = result(_NAMES)["overall"]
    trials = [[(1.0, 0.9, 5), (2.0, 0.5, 5)]] * 2
    private = {"privacy": {"epsilon": None, "delta": 1e-5}}
    changes = {"overall": overall, "client_values": {"loss": values}, **private}
    comparison = _compare(tmp_path, trials, changes=changes)
    row = comparison.trials["row"]
    assert list(row.over_clients) == ["mean", "p10", "p90", "superquantile"]
    expected = overall["over_clients"]["loss"]["p90"]
    assert row.over_clients["p90"]["loss"].tolist() == [expected] * 2
    assert {name: len(each) for name, each in row.client_values.items()} == {
        "loss": 2,
        "accuracy": 0,
        "perplexity": 0,
    }
    assert row.privacy == [(math.inf, 1e-5)] * 2 and comparison.is_private
    content = comparison.to_json()["row"]
    assert content["(over clients)"]["p90"]["loss"]["trials"] == [expected] * 2
