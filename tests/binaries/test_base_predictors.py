"""`base_predictors`, and runs that mix its predictors."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from binaries import base_predictors, evaluate, train
from tests.support import golden
from tests.support.commands import Caller
from tests.support.stores import sentence, write_store
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history

_WORDS = {f"w{k}": 30 - k for k in range(8)}
_TASK = ("--task=unigram", "--data=texts.sqlite", "--clients_per_round=3", "--rounds=3")
_BOOST = (*_TASK, "--algorithm=fed_boost", "--base_predictors=p.npz", "--budget=1")


@pytest.fixture(scope="module")
def predictors(call: Caller, tmp_path_factory) -> Path:
    """A folder with a store of two domains and their predictors."""
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
        outcome = call(base_predictors, "--data=texts.sqlite", "--output=p.npz")
    assert outcome.status == 0, outcome
    assert "2 base predictors over 9 outcomes, of 36 examples by domain" in outcome.out
    return folder


@pytest.fixture
def entered(predictors, monkeypatch) -> Path:
    """The folder of `predictors`, set as the working directory."""
    monkeypatch.chdir(predictors)
    return predictors


@pytest.fixture
def trained(call: Caller, entered) -> Path:
    """The folder of `predictors`, with a FedBoost run in `run`."""
    if not (entered / "run").exists():
        outcome = call.ok(train, *_BOOST, "--output_dir=run")
        assert "base predictor" in outcome.out
    return entered


@pytest.mark.slow
def test_run_reports_sent_bytes_and_alpha(trained):
    columns = read_history(trained / "run" / "metrics.csv")
    assert set(columns["predictors/bytes_sent"]) == {4 * (9 + 4) + 4 * 2}
    assert set(columns["predictors/bytes_of_ensemble"]) == {2 * 4 * (9 + 1)}
    assert set(columns["predictors/sampled"]) == {1}
    rows = list(csv.DictReader((trained / "run" / "alpha.csv").open()))
    assert [row["predictor"] for row in rows] == ["a", "b"]
    assert sum(float(row["alpha (model)"]) for row in rows) == pytest.approx(1)
    assert list(read_json(trained / "run" / "result.json")["models"]) == ["mean"]


@pytest.mark.nightly
def test_boosting_run_resumes_with_moved_predictors(call, trained):
    shorter = [*_BOOST, "--rounds=2", "--output_dir=short"]
    call.ok(train, *shorter)
    (trained / "moved.npz").write_bytes((trained / "p.npz").read_bytes())
    more = ("--resume", "--rounds=3", "--output_dir=short", "--base_predictors=moved.npz")
    call.ok(train, *more)
    for name in ("metrics.csv", "result.json", "alpha.csv"):
        assert (trained / "short" / name).read_bytes() == (trained / "run" / name).read_bytes()
    smoother = ("--data=texts.sqlite", "--smoothing_share=0.5", "--output=o.npz")
    call.ok(base_predictors, *smoother)
    other = ("--resume", "--rounds=4", "--output_dir=short", "--base_predictors=o.npz")
    error = call(train, *other).error
    assert "expected the base_predictors that the run there was trained with" in error
    assert error.endswith(
        "; an ensemble of Keras files is resumed with the Keras that it began with"
    )


@pytest.mark.slow
def test_predictors_are_evaluated_by_name(call, trained):
    call.ok(evaluate, "--checkpoint=run", "--models=model,a,b", "--output=e.json")
    actual = read_json(trained / "e.json")
    losses = [actual["overall"]["loss"], *(m["overall"]["loss"] for m in actual["models"].values())]
    assert len(set(map(str, losses))) == 3


@pytest.mark.slow
def test_examples_beyond_secure_limit_are_reported(call, entered):
    secure = ("--aggregation=secure", "--secure_min_clients=1", "--limit_examples=3")
    outcome = call.ok(base_predictors, "--data=texts.sqlite", *secure, "--output=cut.npz")
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


@golden.arguments
def test_rejects_invalid_flags(call, entered, arguments):
    return call.refused(entered, base_predictors, "--data=texts.sqlite", *arguments)


@golden.arguments
def test_rejects_invalid_ensembles(call, entered, arguments):
    return call.refused(
        entered, train, *_TASK, "--algorithm=fed_boost", "--output_dir=bad", *arguments
    )
