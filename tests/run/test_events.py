"""Messages on diverged models, settings of resumed runs, and remarks about data."""

import dataclasses
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.support.results import make_task
from tff_agnostic.data.clients import FirstExamples, InMemoryClients
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.models import Metric
from tff_agnostic.program.runs.build import data_remarks
from tff_agnostic.program.runs.options import CHANGEABLE_ON_RESUME, RunConfig
from tff_agnostic.program.runs.results import skipped_rounds
from tff_agnostic.program.runs.spec import (
    RunSettings,
    based_on,
    differences,
    resolve,
    settings_changes,
)
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.divergence import diverged

_TASK = make_task(("a", "b"), clients=3)
_CLIENTS = [_TASK.train.read(client_id) for client_id in _TASK.train.client_ids]
_NOTHING = {key: values[:0] for key, values in _CLIENTS[0].items()}


def _message(clients=_CLIENTS, **changed) -> str:
    model = dataclasses.replace(_TASK.model, **changed)
    return str(diverged(3, 4, 5, model, clients))


def _mean(predictions: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(predictions, axis=-1)


def test_model_that_was_finite_before_training_has_diverged():
    assert _message() == (
        "round 3: the model has diverged: no client's numbers could be used (those of 4 "
        "of 5 clients are not finite); lower the learning rate of the clients or of the server"
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": lambda y, p: tf.math.log(0.0 * _mean(p))}, "the loss"),
        ({"loss": lambda y, p: _mean(p) / tf.cast(0 * y, tf.float32)}, "the loss"),
        ({"regularizer": lambda weights: tf.constant(np.inf)}, "the loss"),
        # This loss is finite, but its derivative at 0 is not.
        ({"loss": lambda y, p: tf.sqrt(0.0 * _mean(p))}, "the gradient of the loss"),
        (
            {
                "metrics": (
                    Metric("ratio", lambda y, p: (_mean(p) * np.nan, tf.ones_like(_mean(p)))),
                )
            },
            "the metric ratio",
        ),
    ],
)
def test_quantity_that_is_infinite_before_training_is_named(changed, what):
    assert _message(**changed) == (
        "round 3: no client's numbers could be used (those of 4 of 5 clients are not finite): with "
        f"the weights before any training, {what} is not finite either; look at the model, its "
        "loss and the data: no learning rate fixes it"
    )


@pytest.mark.slow
def test_model_with_one_finite_client_counts_as_diverged():
    # All other clients have infinite features.
    broken = [{**client, "x": client["x"] * np.float32(np.inf)} for client in _CLIENTS]
    assert "the loss is not finite either" in _message(broken)
    assert "the model has diverged" in _message([*broken, _CLIENTS[0]])
    # A client without examples has no finite loss.
    assert "the loss is not finite either" in _message([*broken, _NOTHING])
    assert "the model has diverged" in _message([_NOTHING])


def test_skipped_rounds_name_the_learning_rates():
    message = skipped_rounds(["rounds", "client_learning_rate", "lambda_learning_rate", "window"])
    assert message.startswith("skipped, as if no client had taken part: ")
    assert message.endswith("; lower --client_learning_rate or --lambda_learning_rate")
    assert skipped_rounds(["rounds"]).endswith("was not")


# --- A resumed run inherits settings, and must not change some of them


_EARLIER = resolve(
    "digits",
    {"seed": 3, "window": 4, "rounds": 7, "aggregation": "secure", "limit_examples": 50},
    {"num_clients": 9},
)


def _inheriting(given: dict[str, Any], options: Optional[dict[str, Any]] = None) -> RunSettings:
    return based_on(_EARLIER, given, options or {}, None, None)


def test_missing_settings_are_inherited():
    assert _inheriting({}) == _EARLIER
    longer = _inheriting({"rounds": 9, "runtime": "tff"})
    expected = {**_EARLIER.flags(), "rounds": 9, "runtime": "tff"}
    assert longer.flags() == expected
    assert longer.given == {"rounds", "runtime"}


def test_missing_paths_are_inherited(tmp_path):
    options = {"model": str(tmp_path / "model.py")}
    earlier = resolve("custom", {}, options, data=tmp_path / "s.sqlite")
    assert based_on(earlier, {}, {}, None, None) == earlier
    moved = based_on(
        earlier, {}, {"model": tmp_path / "new.py"}, None, tmp_path / "new" / "s.sqlite"
    )
    assert moved.data == str(tmp_path / "new" / "s.sqlite")
    both = [
        f"--data is {earlier.data} there and {moved.data} here",
        f"--model is {options['model']} there and {tmp_path / 'new.py'} here",
    ]
    assert differences(earlier, moved, {}) == both
    assert differences(earlier, moved, {"data": "1", "vocabulary": "2"}) == both[1:]
    assert differences(earlier, moved, {"data": "1", "model": "3"}) == []


def test_differences_list_all_changed_settings():
    other = _inheriting(
        {"window": 5, "seed": 4, "rounds": 8, "limit_examples": 60}, {"num_clients": 10}
    )
    assert differences(_EARLIER, other, {}) == [
        "--limit_examples is 50 there and 60 here",
        "--num_clients is 9 there and 10 here",
        "--seed is 3 there and 4 here",
        "--window is 4 there and 5 here",
    ]


def test_differences_of_algorithms_list_given_flags_only():
    other = resolve("digits", {"algorithm": "fed_avg", "seed": 5}, {})
    assert differences(_EARLIER, other, {}) == [
        "--aggregation is secure there and plain here",
        "--algorithm is agnostic_fed_avg there and fed_avg here",
        "--seed is 3 there and 5 here",
    ]
    toy = resolve("toy_regression", {"aggregation": "secure", "window": 5}, {})
    assert differences(_EARLIER, toy, {}) == [
        "--task is digits there and toy_regression here",
        "--window is 4 there and 5 here",
    ]


_OTHER: dict[str, Any] = {
    "runtime": "tff",
    "rounds": 9,
    "evaluate_every": 3,
    "evaluation_clients": 5,
    "worst_min_examples": 20,
    "client_percentiles": (25.0, 75.0),
    "checkpoint_every": 2,
    "keep_checkpoints": 7,
}


@pytest.mark.parametrize("flag", list(CHANGEABLE_ON_RESUME))
def test_changeable_settings_are_reported(flag):
    assert set(_OTHER) == set(CHANGEABLE_ON_RESUME)
    other = _inheriting({flag: _OTHER[flag]})
    assert other != _EARLIER
    assert differences(_EARLIER, other, {}) == []
    lines = settings_changes(_EARLIER, other)
    assert len(lines) == (flag not in ("rounds", "checkpoint_every", "keep_checkpoints"))
    assert all(line.startswith(f"--{flag} was ") for line in lines)
    assert settings_changes(_EARLIER, _EARLIER) == []


# --- Remarks about the data precede the first round


def _clients(**domain_ids):
    return InMemoryClients({k: {"domain_id": np.array(v, np.int32)} for k, v in domain_ids.items()})


def _task(train, test, **more):
    return Task(("x", "y", "z"), train, test, model=None, **more)  # type: ignore[arg-type]


def test_remarks_name_limits_and_small_domains():
    chosen = Remark("words_cut", "of the task", {})
    train = _clients(a=[0] * 150, b=[1] * 120)
    task = _task(
        FirstExamples(train, 100), _clients(t=[0] * 100 + [1] * 3), remarks=lambda: [chosen]
    )
    actual = data_remarks(task, RunConfig(max_examples=100))
    assert [remark.kind for remark in actual] == [
        "words_cut",
        "examples_beyond",
        "domains_without_examples",
        "domains_without_examples",
        "small_domains",
    ]
    _, beyond, train_without, test_without, small = actual
    assert (beyond.figures["examples"], beyond.figures["examples_left_out"]) == (270, 70)
    assert train_without.figures == {"split": "train", "domains": ["z"]}
    assert test_without.figures == {"split": "test", "domains": ["z"]}
    assert small.figures["domains"] == {"y": 3}


def test_balanced_data_have_no_remarks():
    clients = _clients(a=[0, 1, 2] * 100)
    assert data_remarks(_task(clients, clients), RunConfig()) == []


@pytest.mark.parametrize("count", [200, 201])
def test_more_than_200_clients_are_not_read(count):
    class Counted(InMemoryClients):
        reads = 0

        def read(self, client_id):
            Counted.reads += 1
            return super().read(client_id)

    clients = Counted({str(k): {"domain_id": np.zeros(1, np.int32)} for k in range(count)})
    task = _task(clients, _clients(t=[0, 1, 2] * 100))
    actual = data_remarks(task, RunConfig())
    assert (Counted.reads, bool(actual)) == ((200, True) if count == 200 else (0, False))


def test_held_out_examples_are_reported():
    train = _clients(a=[0, 1] * 50, b=[1] * 20, c=[2], d=[])
    task = _task(train, _clients(t=[0, 1, 2] * 100))
    assert "examples_kept_out" not in [remark.kind for remark in data_remarks(task, RunConfig())]
    (actual,) = [
        remark
        for remark in data_remarks(task, RunConfig(), kept_out=0.2)
        if remark.kind == "examples_kept_out"
    ]
    assert actual.text == (
        "about 19.8% of the examples of train (24 of 121) are not trained on: losses are measured "
        "on them, by --measured_share=0.2. 1 of 4 clients have a single example, train on it "
        "and measure nothing."
    )
    capped, *_ = data_remarks(task, RunConfig(max_examples=10), kept_out=0.5)[1:]
    assert capped.figures["examples_kept_out"] == 10
