"""Every registered task: options, defaults, held-out splits and fingerprints."""

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tests.support import golden
from tests.support.results import make_task
from tests.support.stores import image, sentence, tff_store, write_store
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


@pytest.mark.parametrize("name", list(TASKS))
def test_task_options_have_help_and_default(name):
    for flag in option_flags(TASKS[name].options):
        assert flag.text
        assert flag.default is not dataclasses.MISSING


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


# Every field of a task's options is a public flag; this list makes additions deliberate.
_FLAGS = """
    categories concentration domain_feature heldout_share high_school_writers keep label_feature
    long_sentences model network num_classes num_clients num_test_clients predict ridge
    sequence_length spread test_share test_split train_share vocabulary
"""


def test_task_flags_differ_from_run_flags():
    options = task_flags()
    assert sorted(options) == _FLAGS.split()
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
    assert golden.refusal(option.parsed, "0") == "--vocabulary: expected at least 1, found 0"
    assert golden.refusal(option.parsed, "") == "--vocabulary: expected a path, found an empty one"


def test_next_word_defaults_are_the_papers_networks():
    networks = {
        "next_word": LstmNetwork(embedding=96, units=256, layers=1, tied=False),
        "stackoverflow": LstmNetwork(embedding=96, units=670, layers=1, tied=False),
        "two_domain_lm": LstmNetwork(embedding=96, units=256, layers=2, tied=False),
        "spanish_keyboard": CifgNetwork(embedding=96, units=670, layers=1, tied=True),
    }
    for name, network in networks.items():
        assert task_options(name, {}).network == network
    for name in ("two_domain_lm", "spanish_keyboard"):
        assert DEFAULTS[name].spec is TASKS["next_word"]


def test_every_library_task_has_defaults():
    assert {entry.task for entry in DEFAULTS.values()} == set(TASKS)


def test_network_option_accepts_each_tasks_network_names():
    option = task_flags()["network"]
    for task, text in (
        ("text_classifier", "lstm"),
        ("emnist", "linear"),
        ("text_classifier", "mean"),
    ):
        assert task_options(task, {"network": option.parsed(text)}).network == text
    for text, network in (("cifg", CifgNetwork()), ("lstm:units=5", LstmNetwork(units=5))):
        assert task_options("next_word", {"network": option.parsed(text)}).network == network


def test_errors_of_runs_prefix_options_with_dashes(tmp_path):
    context = TaskContext(0, data=_images(tmp_path / "s.sqlite", 0.5))
    options = {"high_school_writers": 9}
    message = "high_school_writers: expected 1 to 1, the number of high-school writers, found 9"
    assert golden.refusal(load_task, "emnist", options, context) == message
    assert golden.refusal(load_run_task, "emnist", options, context) == f"--{message}"
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


# --- Tests of held-out splits, on which settings are chosen


@pytest.mark.parametrize(
    "name", [name for name, entry in DEFAULTS.items() if entry.spec.data is not Use.NO]
)
def test_tasks_on_stores_have_a_held_out_split(name):
    assert heldout_options(name, {}) == {"test_split": "heldout"}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("digits", {}, {"heldout_share": 0.25}),
        ("digits", {"heldout_share": 0.1, "keep": ""}, {"heldout_share": 0.1, "keep": ""}),
        ("adult", {"ridge": 0.5}, {"heldout_share": 0.2, "ridge": 0.5}),
        ("emnist", {"test_split": "heldout"}, {"test_split": "heldout"}),
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


_SMALL: dict[str, Any] = {"network": LstmNetwork(2, 2), "sequence_length": 3}
_OPTIONS: dict[str, Any] = {
    "emnist": {},
    "fashion_mnist": {},
    "stackoverflow": _SMALL,
    "next_word": _SMALL,
    "custom": {},
}
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


_STORES = [
    ("emnist", _images, (0.25, 0.75)),
    ("emnist", _tff_images, (0.25, 0.75)),
    ("fashion_mnist", _images, (0.25, 0.75)),
    ("custom", _images, (0.25, 0.75)),
    ("stackoverflow", _texts, ("a", "b")),
    ("stackoverflow", _tff_texts, ("a", "b")),
    ("next_word", _texts, ("a", "b")),
]


def _fingerprint(task: str, folder: Path, store: Path) -> dict[str, str]:
    (folder / "words.txt").write_text("so 2\n")
    (folder / "model.py").write_text(_MODEL)
    if not (folder / "parts.py").exists():
        (folder / "parts.py").write_text(_PARTS)
    options = dict(_OPTIONS[task])
    if task == "custom":
        options["model"] = str(folder / "model.py")
    elif "sequence_length" in options:
        options["vocabulary"] = str(folder / "words.txt")
    return dict(load_task(task, options, TaskContext(0, data=store)).fingerprint)


@pytest.mark.parametrize(("task", "write", "contents"), _STORES)
def test_fingerprint_depends_on_the_stores_examples(
    tmp_path, task: str, write: Callable[[Path, Any], Path], contents: Any
):
    first, other = contents
    stores = {
        name: write(tmp_path / f"{name}.sqlite", content)
        for name, content in (("first", first), ("same", first), ("other", other))
    }
    result = {name: _fingerprint(task, tmp_path, store) for name, store in stores.items()}
    assert result["first"] == result["same"]
    assert result["first"]["data"] != result["other"]["data"]
    assert len(result["first"]["data"]) == 16
    # "data" is last, since a resumed run reports the first difference only.
    assert list(result["first"])[-1] == "data"
    assert {**result["other"], "data": ""} == {**result["first"], "data": ""}


@pytest.mark.slow
def test_client_id_changes_the_fingerprint(tmp_path):
    path = _images(tmp_path / "s.sqlite", 0.25)
    first = _fingerprint("emnist", tmp_path, path)
    with sqlite3.connect(path) as store:
        store.execute("UPDATE examples SET client_id = 'b' WHERE split_name = 'test'")
    store.close()
    assert _fingerprint("emnist", tmp_path, path)["data"] != first["data"]


@pytest.mark.slow
def test_fingerprint_covers_imported_modules(tmp_path):
    path = _images(tmp_path / "s.sqlite", 0.25)
    first = _fingerprint("custom", tmp_path, path)
    (tmp_path / "parts.py").write_text(_PARTS.replace("classes", "classes + 1"))
    (tmp_path / "unused.py").write_text("")
    second = _fingerprint("custom", tmp_path, path)
    key = "files that the model imports"
    assert second[key] != first[key]
    assert {**second, key: ""} == {**first, key: ""}
