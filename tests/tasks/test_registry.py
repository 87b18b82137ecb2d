"""Every registered task: options, defaults, held-out splits and fingerprints."""

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.results import make_task
from tests.support.stores import image, reviews, sentence, tff_store, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.commands.registry import own_flags
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import option_flags
from tff_agnostic.program.options.tasks import (
    FORMAT,
    check_task_options,
    load_run_task,
    task_flags,
    task_options,
)
from tff_agnostic.program.runs.heldout import check_heldout, heldout_options, split_options
from tff_agnostic.program.runs.options import (
    RunConfig,
    registered_settings,
    run_flags,
    runtime_flags,
)
from tff_agnostic.program.runs.spec import from_flags, resolve
from tff_agnostic.tasks.registry import TASKS, load_task
from tff_agnostic.tasks.task import TaskContext, Use
from tff_agnostic.tasks.text_tasks import CifgNetwork, LstmNetwork


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DEFAULTS))
def test_defaults_are_valid_run_settings(name):
    entry = DEFAULTS[name]
    assert entry.summary
    kinds = [RunConfig, *(kind for _, _, kind in registered_settings())]
    expected = {flag.name for kind in kinds for flag in option_flags(kind)}
    assert set(entry.settings) <= expected
    for algorithm, defaults in entry.settings_by_algorithm.items():
        assert set(defaults) <= expected
        resolve(name, {"algorithm": algorithm}, {})
    resolve(name, {}, {})


def test_task_flags_differ_from_run_flags():
    options = task_flags()
    assert not set(options) & {*run_flags(), *runtime_flags(), *own_flags()}
    assert options["heldout_share"].user_names == "digits, adult"
    check_task_options("adult", ["ridge", "heldout_share"])
    result = golden.refusal(check_task_options, "adult", ["ridge", "train_share"])
    assert result.startswith(
        "--train_share has no effect with --task=adult: it needs --task=custom"
    )


def test_vocabulary_flag_is_number_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = task_flags()["vocabulary"]
    for text, value in (("20", 20), ("words.txt", str(tmp_path / "words.txt"))):
        spec = resolve("next_word", {}, {"vocabulary": option.parsed(text)})
        assert spec.task_options["vocabulary"] == spec.flags()["vocabulary"] == value
        assert from_flags({**spec.flags(), "format": FORMAT}) == spec


def test_next_word_defaults_are_the_papers_networks():
    networks = {
        "next_word": LstmNetwork(embedding=96, units=256, layers=1, tied=False),
        "stackoverflow": LstmNetwork(embedding=96, units=670, layers=1, tied=False),
        "two_domain_lm": LstmNetwork(embedding=96, units=256, layers=2, tied=False),
        "spanish_keyboard": CifgNetwork(embedding=96, units=670, layers=1, tied=True),
    }
    for name, network in networks.items():
        assert task_options(name, {}).network == network
    assert {entry.task for entry in DEFAULTS.values()} == set(TASKS)


def test_network_option_accepts_each_tasks_network_names():
    option = task_flags()["network"]
    for task, text in (("text_classifier", "lstm"), ("emnist", "linear")):
        assert task_options(task, {"network": option.parsed(text)}).network == text
    for text, network in (("cifg", CifgNetwork()), ("lstm:units=5", LstmNetwork(units=5))):
        assert task_options("next_word", {"network": option.parsed(text)}).network == network


def test_errors_of_runs_prefix_options_with_dashes():
    message = "data: expected a client store, which this task reads, found none"
    assert golden.refusal(load_task, "next_word", {}, TaskContext(0)) == message
    result = golden.refusal(load_run_task, "spanish_keyboard", {}, TaskContext(0))
    assert result == f"--{message}"


@pytest.mark.parametrize("name", ["digits", "toy_regression"])
def test_tasks_without_files_load_with_defaults(name):
    task = load_task(name, {}, TaskContext(seed=0))
    assert len(set(task.domain_names)) == task.num_domains
    cohort_size = {**dataclasses.asdict(RunConfig()), **DEFAULTS[name].settings}[
        "clients_per_round"
    ]
    assert cohort_size <= len(task.train.client_ids)


@golden.values
def test_unsuitable_task_options_raise(tmp_path, case):
    name, options, data_dir = case
    (tmp_path / "here").mkdir()
    context = TaskContext(seed=0, data_dir=None if data_dir is None else tmp_path / data_dir)
    return golden.refusal(load_task, name, options, context)


_AT_LEAST_1 = "at least 1"
_HELD_OUT = "at least 0 and at most 0.9"


@pytest.mark.parametrize(
    ("task", "option", "value", "expected"),
    [
        ("digits", "concentration", 1e-5, "at least 0.0001"),
        ("digits", "test_share", 0.04, "at least 0.05 and at most 0.9"),
        ("digits", "test_share", 0.91, "at least 0.05 and at most 0.9"),
        ("digits", "heldout_share", -0.1, _HELD_OUT),
        ("digits", "heldout_share", 0.91, _HELD_OUT),
        ("adult", "heldout_share", -0.1, _HELD_OUT),
        ("adult", "heldout_share", 0.91, _HELD_OUT),
        ("adult", "ridge", -0.1, "at least 0"),
        ("toy_regression", "spread", -0.1, "at least 0"),
        ("emnist", "num_classes", 1, "at least 2"),
        ("emnist", "train_share", 0.0, "above 0 and below 1"),
        ("emnist", "train_share", 1.0, "above 0 and below 1"),
        ("next_word", "vocabulary", 0, _AT_LEAST_1),
        ("next_word", "sequence_length", 0, _AT_LEAST_1),
    ],
)
def test_option_out_of_its_range_raises(task, option, value, expected):
    message = golden.refusal(task_options, task, {option: value})
    assert message == f"--{option}: expected {expected}, found {value}"


@pytest.mark.parametrize("field", ["embedding", "units", "layers"])
@pytest.mark.parametrize("network", [LstmNetwork, CifgNetwork])
def test_network_without_size_raises(network, field):
    message = golden.refusal(network, **{field: 0})
    assert message == f"{field}: expected at least 1, found 0"


# --- Tests of held-out splits, on which settings are chosen


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        *(
            (name, {}, {"test_split": "heldout"})
            for name, entry in DEFAULTS.items()
            if entry.spec.data is not Use.NO
        ),
        ("digits", {"heldout_share": 0.1, "keep": ""}, {"heldout_share": 0.1, "keep": ""}),
        ("adult", {"ridge": 0.5}, {"heldout_share": 0.2, "ridge": 0.5}),
    ],
)
def test_heldout_options_keep_given_options(name, given, expected):
    assert heldout_options(name, given) == expected
    assert set(expected) - {"keep", "ridge"} <= split_options(name)


@golden.values
def test_heldout_options_reject_the_test_split(case):
    name, given = case
    return golden.refusal(heldout_options, name, given)


def test_only_the_heldout_split_may_choose_settings():
    task = make_task("ab")
    check_heldout(dataclasses.replace(task, test_split="heldout"), "mine")
    for split in ("test", "train_clients"):
        with pytest.raises(UserError, match=f"on the heldout split, found the split {split}"):
            check_heldout(dataclasses.replace(task, test_split=split), "mine")


# --- Tests of fingerprints of tasks on client stores


_MODEL = """
import tensorflow as tf
import parts

def build_model(data):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(parts.units(data))]
    return tf.keras.Sequential([tf.keras.Input(data.x_shape), *layers]), loss
"""
_PARTS = "def units(data):\n    return data.num_classes\n"


def _images(path: Path, ink: float) -> Path:
    rows = [
        (split, image("a", domain, label, ink=ink if split == "train" else 0.5))
        for split in ("train", "test")
        for label, domain in ((0, "census"), (2, "high_school"))
    ]
    return write_store(path, rows, "features")


def _texts(path: Path, last: str) -> Path:
    rows = [
        (split, sentence("a", domain, f"so {last}"))
        for split in ("train", "test")
        for domain in ("answer", "question")
    ]
    return write_store(path, rows, "text", vocabulary={"so": 2})


def _tff_images(path: Path, ink: float) -> Path:
    pixels = np.full([784], ink, np.float32)
    return tff_store(
        path, [(s, "f2103_04", {"pixels": pixels, "label": 1}) for s in ("train", "test")]
    )


def _tff_texts(path: Path, last: str) -> Path:
    row = {"tokens": f"so {last}", "type": "answer"}
    return tff_store(path, [(s, "a", row) for s in ("train", "test")])


def _fingerprint(task: str, options: Any, store: Path) -> dict[str, str]:
    return dict(load_task(task, options, TaskContext(0, data=store)).fingerprint)


@pytest.fixture
def written_model(tmp_path, monkeypatch) -> None:
    """Writes a model and its module to the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(_MODEL)
    Path("parts.py").write_text(_PARTS)
    Path("words.txt").write_text("so 2\n")


_TEXT_OPTIONS: dict[str, Any] = {
    "network": LstmNetwork(2, 2),
    "sequence_length": 3,
    "vocabulary": "words.txt",
}


@pytest.mark.usefixtures("written_model")
@pytest.mark.parametrize(
    ("task", "options", "write", "contents"),
    [
        ("emnist", {}, _images, (0.25, 0.75)),
        ("emnist", {}, _tff_images, (0.25, 0.75)),
        ("fashion_mnist", {}, _images, (0.25, 0.75)),
        ("custom", {"model": "model.py"}, _images, (0.25, 0.75)),
        ("text_classifier", {}, reviews, ((0, 1, 2), (0, 2, 1))),
        ("stackoverflow", _TEXT_OPTIONS, _texts, ("a", "b")),
        ("stackoverflow", _TEXT_OPTIONS, _tff_texts, ("a", "b")),
        ("next_word", _TEXT_OPTIONS, _texts, ("a", "b")),
    ],
)
def test_fingerprint_depends_on_the_stores_examples(tmp_path, task, options, write, contents):
    stores = [
        write(tmp_path / f"{k}.sqlite", content)
        for k, content in enumerate((contents[0], *contents))
    ]
    first, same, other = (_fingerprint(task, options, store) for store in stores)
    assert first == same
    assert first["data"] != other["data"]
    # "data" is last, since a resumed run reports the first difference only.
    assert list(first)[-1] == "data"
    assert {**other, "data": ""} == {**first, "data": ""}


@pytest.mark.slow
def test_client_id_changes_the_fingerprint(tmp_path):
    path = _images(tmp_path / "s.sqlite", 0.25)
    first = _fingerprint("emnist", {}, path)
    with sqlite3.connect(path) as store:
        store.execute("UPDATE examples SET client_id = 'b' WHERE split_name = 'test'")
    store.close()
    assert _fingerprint("emnist", {}, path)["data"] != first["data"]


@pytest.mark.slow
@pytest.mark.usefixtures("written_model")
@pytest.mark.parametrize(
    ("file", "key"), [("model.py", "model"), ("parts.py", "files that the model imports")]
)
def test_fingerprint_covers_model_and_imported_modules(tmp_path, file, key):
    path = _images(tmp_path / "s.sqlite", 0.25)
    first = _fingerprint("custom", {"model": "model.py"}, path)
    Path(file).write_text(Path(file).read_text() + "# Changed\n")
    Path("unused.py").write_text("")
    second = _fingerprint("custom", {"model": "model.py"}, path)
    assert second[key] != first[key]
    assert {**second, key: ""} == {**first, key: ""}
