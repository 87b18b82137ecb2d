"""Predictions for raw rows and texts as in docs/how_to/use_elsewhere.md."""

import json
import runpy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.saving import handed_over
from tests.saving.harness import ask_plain_tensorflow
from tests.support.imports import job
from tff_agnostic.data.inputs import ModelInputs, inputs_json
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.text import Normalizer
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.privacy import private_training
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.saving import saved_model
from tff_agnostic.saving.trained_model import TrainedModel, inputs_by_name
from tff_agnostic.saving.typed_text import store_words
from tff_agnostic.tasks.stored import text_inputs
from tff_agnostic.tasks.stored_inputs import StoredInputs


@pytest.mark.nightly
def test_documented_scripts_predict_raw_rows(tmp_path):
    folder = tmp_path / "case"
    folder.mkdir()
    model = handed_over.hand_over(folder)
    ask_plain_tensorflow(tmp_path)
    x = handed_over.as_x(folder)
    # Some rows have no age, and some have no device.
    assert len(set(x[:, 3])) == len(set(x[:, 4])) == 2
    scores = np.asarray(model.predict(x), np.float64)
    assert np.ptp(scores) > 0.1
    odds = np.exp(scores)
    with np.load(folder / "with_tensorflow.py.npz") as outputs:
        expected = odds / odds.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
    with np.load(folder / "with_keras.py.npz") as outputs:
        np.testing.assert_allclose(outputs["scores"], scores, atol=1e-5)


def test_model_card_describes_the_columns(tmp_path):
    task = handed_over.shoppers(tmp_path)
    described = inputs_json(task.inputs, task.class_names, task.words)
    scales = [[e.pop("subtract"), e.pop("divide_by")] for e in described["inputs"]["x"][:2]]
    numbers = load_store(tmp_path / "shoppers.sqlite").description.statistics["x"]
    assert scales == [[one.mean, one.deviation] for one in numbers]
    assert described == {
        "inputs": {
            "x": [
                {"is": "number", "column": "visits a week"},
                {"is": "number", "column": "age"},
                {"is": "missing", "column": "visits a week"},
                {"is": "missing", "column": "age"},
                {"is": "category", "column": "device", "value": "<missing>"},
                {"is": "category", "column": "device", "value": "laptop"},
                {"is": "category", "column": "device", "value": "phone"},
                {"is": "category", "column": "city", "value": "Cusco"},
                {"is": "category", "column": "city", "value": "Lima"},
            ]
        },
        "columns": {"client": "shopper", "domain": "city", "label": "bought"},
        "domain_is_an_input": True,
        "missing_cells": ["", "?"],
        "missing_category": "<missing>",
        "classes": ["no", "yes"],
    }


@pytest.mark.parametrize(("encoding", "standardize"), [("one_hot", True), ("ids", False)])
def test_signature_by_column_returns_imported_inputs(tmp_path, encoding, standardize):
    rows = [
        {"who": "a", "v 1": [0.5, None], "class": 3, "año": "x", "job": " cook ", "y": 0},
        {"who": "a", "v 1": [2, 7], "class": None, "año": None, "job": "baker", "y": 1},
        {"who": "a", "v 1": [2, 8], "class": 1, "año": "z", "job": "cook", "y": 1},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "client_column": "who",
        "domain_name": "web",
        "label_column": "y",
        "feature_columns": ("v 1", "class"),
        "categorical_columns": ("año", "job"),
        "missing_values": "mark",
        "split": ("train:1",),
        "standardize": standardize,
    }
    job("jsonl", path, tmp_path / "s.sqlite", **options).run(ReadLog())
    store = load_store(tmp_path / "s.sqlite")
    inputs = StoredInputs(store, encoding)
    expected = inputs.build_x(store.columns("train", "a", inputs.features), "a")
    # A model that has just the spec of the store's inputs.
    only_spec: Any = SimpleNamespace(example_spec={"x": inputs.spec})
    trained = TrainedModel(only_spec, ModelWeights([], []), inputs=inputs.described)
    signature = saved_model.signature(trained, inputs_by_name)
    nan = float("nan")
    outputs = signature(
        v_1=tf.constant([[0.5, nan], [2, 7], [2, 8]]),
        class_=tf.constant([3, nan, 1]),
        a_o=tf.constant(["x", "", "z"]),
        job=tf.constant([" cook ", "baker", "cook"]),
    )
    assert outputs.keys() == inputs_by_name(expected).keys()
    for name, array in inputs_by_name(expected).items():
        np.testing.assert_array_equal(outputs[name], array)
    assert outputs["x"].shape[1] == {"one_hot": 5 + 3 + 2, "ids": 5}[encoding]


_TEXTS = [
    "See  you, at 5 o'clock... l\u2019\u00e9t\u00e9 <unk> (so-called) 'n' \u00ab\u00ab x",
    "...",
    "<math> A-1",
    "\u0926\u094b\u0938\u094d\u0924\u00a0\u0e1b\u0e39\u0e48 \u0130STANBUL \u6771\u4eac\u3002\u3002",
    "\U0001f602\U0001f602 x_y \u2167 5\u00bd",
]


@pytest.mark.parametrize("tokenizer", ["words", "spaces", "letters"])
@pytest.mark.parametrize(("case", "punctuation"), [("keep", "keep"), ("upper", "drop")])
def test_served_words_equal_imported_words(tmp_path, tokenizer, case, punctuation):
    (tmp_path / "words_in.py").write_text(handed_over.block("# words_in.py"))
    words_in = runpy.run_path(str(tmp_path / "words_in.py"))["words_in"]
    options = ImportOptions(tokenizer=tokenizer, case=case, punctuation=punctuation)
    normalizer = Normalizer(options, "words")
    read = [words_in(text, normalizer.rule) for text in _TEXTS]
    expected = [normalizer.sentence(normalizer.tokenize(text)) for text in _TEXTS]
    # _TEXTS[1] has no words, so an import skips it.
    assert expected[1] == ""
    assert [read[0], *read[2:]] == [expected[0], *expected[2:]]
    served = [text.decode() for text in store_words(tf.constant(_TEXTS), normalizer.rule).numpy()]
    assert served == expected
    again = store_words(tf.constant(served), normalizer.rule).numpy()
    assert [text.decode() for text in again] == expected


def test_model_card_has_text_column_and_rule(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("who,said,y\na,See you,0\n")
    options = {"client_column": "who", "domain_name": "web", "text_column": "said"}
    job("csv", path, tmp_path / "s.sqlite", case="lower", **options).run(ReadLog())
    inputs = text_inputs(load_store(tmp_path / "s.sqlite"), "text")
    assert isinstance(inputs, ModelInputs)
    table = inputs_json(inputs, None, ("see", "you"))
    assert table["inputs"] == {"x": {"is": "text", "column": "said"}}
    assert table["columns"] == {"client": "who", "text": "said"}
    assert table["words"]["case"] == "lower" and table["vocabulary"] == ["see", "you"]


@pytest.mark.nightly
def test_private_run_reports_statistics_outside_of_epsilon(tmp_path):
    task = handed_over.shoppers(tmp_path)
    settings = {
        "algorithm": "fed_avg",
        "privacy": "central",
        "noise_multiplier": 1.0,
        "cohort_sampling": "poisson",
        "clients_per_round": 2,
    }
    options = {"model": str(tmp_path / "model" / "my_shoppers.py")}
    spec = resolve("custom", settings, options, data=tmp_path / "shoppers.sqlite")
    privacy = private_training(spec, task, build_algorithm(spec, task))
    (remark,) = [r for r in privacy.statement(1).remarks if "models and their cards" in r]
    assert remark.startswith("means and deviations, categories of the inputs, ")
    assert "no part of epsilon" in remark
