"""Messages on diverged models, and settings of resumed runs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.results import make_task
from tff_agnostic.models import Metric
from tff_agnostic.program.runs.options import CHANGEABLE_ON_RESUME
from tff_agnostic.program.runs.results import skipped_rounds
from tff_agnostic.program.runs.spec import based_on, differences, resolve, settings_changes
from tff_agnostic.training.divergence import diverged

_TASK = make_task(("a", "b"), clients=3)
_CLIENTS = [_TASK.train.read(client_id) for client_id in _TASK.train.client_ids]
_NOTHING = {key: values[:0] for key, values in _CLIENTS[0].items()}


def _message(clients=_CLIENTS, **changed) -> str:
    model = dataclasses.replace(_TASK.model, **changed)
    return str(diverged(3, 4, 5, model, clients))


def _mean(predictions: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(predictions, axis=-1)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": lambda y, p: tf.math.log(0.0 * _mean(p))}, "the loss"),
        ({"regularizer": lambda weights: tf.constant(np.inf)}, "the loss"),
        # This loss is finite, but its derivative at 0 is not.
        ({"loss": lambda y, p: tf.sqrt(0.0 * _mean(p))}, "the gradient of the loss"),
        (
            {"metrics": (Metric("ratio", lambda y, p: (_mean(p) * np.nan, 1.0)),)},
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
    assert message.endswith("; lower --client_learning_rate or --lambda_learning_rate")
    assert skipped_rounds(["rounds"]).endswith("was not")


# --- A resumed run inherits settings, and must not change some of them


_EARLIER = resolve(
    "digits",
    {"seed": 3, "window": 4, "rounds": 7, "aggregation": "secure", "limit_examples": 50},
    {"num_clients": 9},
)


def test_missing_settings_are_inherited():
    assert based_on(_EARLIER, {}, {}, None, None) == _EARLIER
    changed = {
        "runtime": "tff",
        "evaluate_every": 3,
        "evaluation_clients": 5,
        "worst_min_examples": 20,
        "client_percentiles": (25.0, 75.0),
        # These settings do not change any number.
        "rounds": 9,
        "checkpoint_every": 2,
        "keep_checkpoints": 7,
    }
    assert {*changed} == {*CHANGEABLE_ON_RESUME}
    longer = based_on(_EARLIER, changed, {}, None, None)
    assert longer.flags() == {**_EARLIER.flags(), **changed, "client_percentiles": [25.0, 75.0]}
    assert longer.given == {*changed}
    # A resumed run may change these settings.
    assert differences(_EARLIER, longer, {}) == []
    lines = settings_changes(_EARLIER, longer)
    assert {line.partition(" was ")[0] for line in lines} == {
        f"--{name}" for name in [*changed][:5]
    }
    assert len(lines) == 5 and settings_changes(_EARLIER, _EARLIER) == []


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
    given = {"window": 5, "rounds": 8, "limit_examples": 60}
    other = based_on(_EARLIER, given, {"num_clients": 10}, None, None)
    assert differences(_EARLIER, other, {}) == [
        "--limit_examples is 50 there and 60 here",
        "--num_clients is 9 there and 10 here",
        "--window is 4 there and 5 here",
    ]


def test_differences_of_algorithms_list_given_flags_only():
    other = resolve("digits", {"algorithm": "fed_avg", "seed": 5}, {})
    assert differences(_EARLIER, other, {}) == [
        "--aggregation is secure there and plain here",
        "--algorithm is agnostic_fed_avg there and fed_avg here",
        "--seed is 3 there and 5 here",
    ]
