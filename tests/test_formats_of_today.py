"""A short run of each algorithm equals recorded numbers up to 1e-4.

Other tests compare algorithms with their papers. These tests fail if the same flags give other
results, for example due to another default or order of clients. To record new numbers, run
`pytest --golden tests/test_formats_of_today.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from binaries import base_predictors, train
from tests.support import golden
from tests.support.commands import Caller
from tests.support.stores import sentence, write_store
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.metrics.metrics_file import read_history

_PINNED = Path(__file__).parent / "golden" / "formats_of_today.json"
_COLUMNS = ("lambda/", "update_norm", "train/loss/", "first_epoch/loss/", "test/loss/")
_ROUNDS = ("--rounds=4", "--evaluate_every=2", "--checkpoint_every=2", "--client_mode=streamed")
_TOY_TASK = (
    *("--task=toy_regression", "--num_clients=8", "--clients_per_round=4"),
    *_ROUNDS,
)
_TOY = (*_TOY_TASK, "--client_epochs=2", "--client_learning_rate=0.05")
_TEXTS = (
    *("--task=unigram", "--data=texts.sqlite", "--base_predictors=p.npz"),
    *("--clients_per_round=3", *_ROUNDS),
)
_OTHER_FLAGS = {
    "afl_boost": _TEXTS,
    "fed_boost": (*_TEXTS, "--budget=1"),
    "fed_avg_target_only": (*_TOY, "--target_domain=center +1.0"),
    "stochastic_afl": _TOY_TASK,
}
_SECURE = "secure sums"
_RUNS = {
    **{name: (f"--algorithm={name}", *_OTHER_FLAGS.get(name, _TOY)) for name in ALGORITHMS},
    _SECURE: ("--algorithm=fed_avg", *_TOY, "--aggregation=secure"),
}


@pytest.fixture(scope="module")
def call(cohort_runtime) -> Caller:
    return Caller({"cohort": cohort_runtime})


@pytest.fixture(scope="module")
def texts(call: Caller, tmp_path_factory) -> Path:
    """A folder with a store of two domains, and base predictors of both domains."""
    folder = tmp_path_factory.mktemp("texts")
    records = []
    for k in range(12):
        words = " ".join(f"w{k * i * i % (3 if k % 2 else 7)}" for i in range(1, 13))
        records.append((("train", "train", "test")[k // 4], sentence(f"u{k}", "ab"[k % 2], words)))
    write_store(folder / "texts.sqlite", records, "text", vocabulary={f"w{k}": 9 for k in range(7)})
    flags = (f"--data={folder / 'texts.sqlite'}", f"--output={folder / 'p.npz'}")
    call.ok(base_predictors, *flags)
    return folder


@pytest.mark.slow_cases(
    "afl_boost", "fed_boost", "fed_avg_sub", "fed_avg_target_only", "fed_prox", "term"
)
@pytest.mark.parametrize("name", [*ALGORITHMS, pytest.param(_SECURE, marks=pytest.mark.slow)])
def test_short_run_keeps_its_numbers(call, texts, tmp_path, monkeypatch, name):
    monkeypatch.chdir(texts)
    call.ok(train, *_RUNS[name], f"--output_dir={tmp_path / 'run'}")
    history = read_history(tmp_path / "run" / "metrics.csv")
    columns = {name: values for name, values in history.items() if name.startswith(_COLUMNS)}
    pinned = json.loads(_PINNED.read_text())
    if golden.writes:
        pinned[name] = {
            column: " ".join(f"{value:.6g}" for value in values)
            for column, values in columns.items()
        }
        _PINNED.write_text(json.dumps(pinned, indent=1) + "\n")
    assert columns.keys() == pinned[name].keys()
    for column, text in pinned[name].items():
        expected = [float(number) for number in text.split()]
        np.testing.assert_allclose(columns[column], expected, rtol=1e-4, atol=1e-6, err_msg=column)
