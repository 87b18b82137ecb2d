"""`base_predictors`, and what is trained, evaluated and compared with what it makes."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from binaries import base_predictors, compare, evaluate, save_model, train
from tests import golden
from tests.binaries.harness import Caller
from tests.data.stores import sentence, write_store
from tff_agnostic.metrics.metrics_file import read_history

_WORDS = {f"w{k}": 30 - k for k in range(8)}
_TASK = ("--task=unigram", "--data=texts.sqlite", "--clients_per_round=3", "--rounds=3")
_BOOST = (*_TASK, "--algorithm=fed_boost", "--base_predictors=p.npz", "--budget=1")


@pytest.fixture(scope="module")
def files(call: Caller, tmp_path_factory) -> Path:
    """A store of two domains, their predictors, and a run of FedBoost."""
    folder = tmp_path_factory.mktemp("boost")
    rng = np.random.default_rng(0)
    records = []
    for split in ("train", "test"):
        for k in range(4):
            words = rng.integers(8, size=6) if k % 2 else rng.integers(3, size=12)
            text = " ".join(f"w{w}" for w in words)
            records.append((split, sentence(f"{split}{k}", "ab"[k % 2], text)))
    write_store(folder / "texts.sqlite", records, "text", vocabulary=_WORDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = call(base_predictors, "--data=texts.sqlite", "--output=p.npz")
        assert made.status == 0, made
        assert (
            "2 base predictors over 9 outcomes, of 36 examples by domain, smoothed by 0.01 of "
            "uniform: p.npz" in made.out
        )
        trained = call(train, *_BOOST, "--output_dir=run")
        assert trained.status == 0, trained
        assert "base predictor" in trained.out
    return folder


@pytest.fixture
def there(files, monkeypatch) -> Path:
    """That folder, entered."""
    monkeypatch.chdir(files)
    return files


@pytest.mark.slow
def test_a_run_tells_what_it_sent_and_what_it_learned(there):
    columns = read_history(there / "run" / "metrics.csv")
    # A row of 9 outcomes, four numbers beside it, and the scales of 2 domains.
    assert set(columns["predictors/bytes_sent"]) == {4 * (9 + 4) + 4 * 2}
    assert set(columns["predictors/bytes_of_ensemble"]) == {2 * 4 * (9 + 1)}
    assert set(columns["predictors/sampled"]) == {1}
    rows = list(csv.DictReader((there / "run" / "alpha.csv").open()))
    assert [row["predictor"] for row in rows] == ["a", "b"]
    assert sum(float(row["alpha (model)"]) for row in rows) == pytest.approx(1)
    assert (there / "run" / "plots" / "alpha.png").exists()
    assert list(json.loads((there / "run" / "result.json").read_text())["models"]) == ["mean"]


@pytest.mark.nightly
def test_it_goes_on_to_the_same_bytes_wherever_the_predictors_are(call, there):
    shorter = [*_BOOST, "--rounds=2", "--output_dir=short"]
    assert call(train, *shorter).status == 0
    (there / "moved.npz").write_bytes((there / "p.npz").read_bytes())
    more = ("--resume", "--rounds=3", "--output_dir=short", "--base_predictors=moved.npz")
    outcome = call(train, *more)
    assert outcome.status == 0, outcome
    for name in ("metrics.csv", "result.json", "alpha.csv"):
        assert (there / "short" / name).read_bytes() == (there / "run" / name).read_bytes()
    smoother = ("--data=texts.sqlite", "--smoothing_share=0.5", "--output=o.npz")
    assert call(base_predictors, *smoother).status == 0
    other = ("--resume", "--rounds=4", "--output_dir=short", "--base_predictors=o.npz")
    error = call(train, *other).error
    assert "expected the base_predictors that the run there was trained with" in error
    assert error.endswith("; an ensemble of Keras files goes on with the Keras that it began with")


@pytest.mark.slow
def test_each_predictor_is_evaluated_by_its_name(call, there):
    outcome = call(evaluate, "--checkpoint=run", "--models=model,a,b", "--output=e.json")
    assert outcome.status == 0, outcome
    found = json.loads((there / "e.json").read_text())
    losses = [found["overall"]["loss"], *(m["overall"]["loss"] for m in found["models"].values())]
    assert len(set(map(str, losses))) == 3


@pytest.mark.slow
def test_a_saved_ensemble_has_a_card_with_the_names_of_its_predictors(call, there):
    saved = call(save_model, "--checkpoint=run", "--format=saved_model", "--output_dir=saved")
    assert saved.status == 0, saved
    card = json.loads((there / "saved" / "model_card.json").read_text())
    assert card["settings"]["base_predictors"] == ["p.npz"]


@pytest.mark.nightly
def test_it_is_compared_with_a_model_of_all_data(call, there):
    outcome = call(
        *(compare, *_TASK, "--trials=1", "--output_dir=compared"),
        "--arms=fed_avg;fed_boost:base_predictors=p.npz;all=afl_boost:base_predictors=p.npz,"
        "predictor_sampling=none",
    )
    assert outcome.status == 0, outcome
    rows = json.loads((there / "compared" / "compare.json").read_text())
    assert all(name in json.dumps(rows) for name in ("fed_avg", "fed_boost", "all"))


@pytest.mark.slow
def test_words_that_secure_counts_leave_out_are_said(call, there):
    secure = ("--aggregation=secure", "--secure_min_clients=1", "--limit_examples=3")
    outcome = call(base_predictors, "--data=texts.sqlite", *secure, "--output=cut.npz")
    assert outcome.status == 0, outcome
    whole = call(base_predictors, "--data=texts.sqlite", "--output=whole.npz")
    counted, cut = (
        int(re.search(pattern, outcome.out)[1])
        for pattern in (
            r" of (\d+) examples by domain",
            r"note: examples left out, of clients with more than --limit_examples=3: (\d+)\n",
        )
    )
    assert cut > 0
    assert f" of {counted + cut} examples by domain" in whole.out
    assert "left out" not in whole.out


@pytest.mark.nightly
def test_runs_are_base_predictors_of_the_next(call, there):
    for name in ("one", "two"):
        flags = ("--algorithm=fed_avg", "--rounds=2", f"--output_dir={name}")
        assert call(train, *_TASK, *flags).status == 0
    outcome = call(
        *(train, *_TASK, "--algorithm=afl_boost", "--base_predictors=one,two,p.npz"),
        "--output_dir=next",
    )
    assert outcome.status == 0, outcome
    rows = list(csv.DictReader((there / "next" / "alpha.csv").open()))
    assert [row["predictor"] for row in rows] == ["one", "two", "a", "b"]


@golden.arguments
def test_bad_flags(call, there, arguments):
    return call.refused(there, base_predictors, "--data=texts.sqlite", *arguments)


@pytest.mark.nightly
def test_other_tasks_have_no_outcomes_to_count(call, there):
    refused = call.refused(there, base_predictors, "--task=digits", "--output=x.npz")
    assert refused.startswith("--task: expected one of distributions, such as unigram")


@golden.arguments
def test_bad_ensembles(call, there, arguments):
    return call.refused(
        there, train, *_TASK, "--algorithm=fed_boost", "--output_dir=bad", *arguments
    )
