"""Domains with awkward names, and a domain without examples, in the files of a run."""

import pytest

from binaries import compare, train
from tests.support.commands import tree, write_points
from tests.support.results import AWKWARD_NAMES
from tff_agnostic.base.files import read_json

_FLAGS = (
    *("--task=custom", "--data=clients.sqlite", "--model=model.py", "--clients_per_round=2"),
    *("--rounds=2", "--evaluate_every=2", "--output_dir=run"),
)


@pytest.mark.nightly
def test_files_keep_awkward_domain_names(call, folder):
    write_points(folder / "clients.sqlite", AWKWARD_NAMES)
    call.ok(train, *_FLAGS)
    result = read_json(folder / "run" / "result.json")
    assert set(result["domains"]) == set(result["domain_weights"]) == set(AWKWARD_NAMES)
    # A resumed run reads metrics.csv, and draws curves from it.
    before = tree(folder / "run")
    call.ok(train, *_FLAGS, "--resume")
    for name in ("metrics.csv", "result.json", "page.json"):
        assert tree(folder / "run")[name] == before[name]


@pytest.mark.nightly
def test_domain_without_examples_has_no_loss(call, folder):
    write_points(folder / "clients.sqlite", ("phone", "tablet"), held_out=("watch",))
    call.ok(train, *_FLAGS)
    watch = read_json(folder / "run" / "result.json")["domains"]["watch"]
    assert (watch["num_examples"], watch["loss"], watch["accuracy"]) == (0, None, None)
    call.ok(compare, *_FLAGS[:-1], "--trials=1", "--output_dir=compared")
    compared = read_json(folder / "compared" / "compare.json")
    assert compared["fed_avg"]["watch"]["loss"] == {"mean": None, "std": None, "trials": [None]}
