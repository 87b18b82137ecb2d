"""Small models and export requests."""

import itertools
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tests.support import keras_zoo
from tests.support.algorithms import build
from tests.support.options import make_options
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations import AGGREGATIONS, SecureSumOptions
from tff_agnostic.deployment.export import ExportRequest
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import ColumnRange
from tff_agnostic.models import Model, accuracy, logistic_regression, next_word_lstm

NUM_DOMAINS = 3
_VOCABULARY = 8


class Kind(NamedTuple):
    """A model, with the value ranges of its examples' columns."""

    model: Callable[[], Model]
    ranges: Any


def _from_zoo(kind: keras_zoo.Kind) -> Kind:
    rng = np.random.default_rng(0)
    return Kind(
        lambda: kind.model(metrics=[accuracy()]),
        tf.nest.map_structure(
            lambda column: ColumnRange(column.min(), column.max()),
            {"x": kind.x(rng, 50), "y": kind.y(rng, 50)},
        ),
    )


_TOKENS = ColumnRange(0, _VOCABULARY)

KINDS = {
    "logistic": Kind(
        lambda: logistic_regression(4, 3), {"x": ColumnRange(-2.0, 2.0), "y": ColumnRange(0, 2)}
    ),
    "convolutional": _from_zoo(keras_zoo.KINDS["convolutional"]),
    "lstm": Kind(
        lambda: next_word_lstm(5, embedding=3, units=4, sequence_length=3),
        {"x": _TOKENS, "y": _TOKENS},
    ),
    "two_inputs": _from_zoo(keras_zoo.KINDS["two_inputs"]),
}

# Pairs (kind, profile). One profile suffices for two_inputs, whose example format is the same in
# both.
COMBINATIONS = [
    (kind, profile)
    for kind in KINDS
    for profile in PROFILES
    if kind != "two_inputs" or profile == "daf"
]

ALL_ALGORITHMS = list(itertools.product(ALGORITHMS, PROFILES))
# AgnosticFedAvg in both profiles, and algorithms whose states are structured differently.
USUAL_ALGORITHMS = [
    ("agnostic_fed_avg", "daf"),
    ("agnostic_fed_avg", "secure"),
    ("delta_fl", "daf"),
    ("fed_boost", "secure"),
    ("stochastic_afl", "daf"),
]


def make_request(
    profile: str,
    kind: str = "logistic",
    algorithm: str = "agnostic_fed_avg",
    server_optimizer: str = "sgd",
    threshold: str = "lagged",
    theta: tuple[float, ...] = (0.5,),
    schedule: str = "constant",
    **changes: Any,
) -> ExportRequest:
    """Returns an export request; a client takes several steps, and its last batch is incomplete.

    Args:
        schedule: Schedule of the client and server learning rates.
    """
    model, ranges = KINDS[kind].model(), KINDS[kind].ranges
    built = build(
        algorithm,
        model,
        NUM_DOMAINS,
        server_optimizer=server_optimizer,
        server_learning_rate=0.5,
        threshold=threshold,
        theta=theta,
        client_schedule=schedule,
        server_schedule=schedule,
        initial_counts=(5.0,) * NUM_DOMAINS,
    )
    spec = AGGREGATIONS[PROFILES[profile].aggregation]
    options = {"secure": make_options(SecureSumOptions, limit_examples=20)}
    values: dict[str, Any] = {
        "algorithm": built,
        "profile": profile,
        "num_domains": NUM_DOMAINS,
        "num_parameters": model.num_parameters,
        # This is twice the number of clients in conformance rounds.
        "max_clients_per_round": 8,
        "column_ranges": ranges,
        "aggregation": spec.build(options.get(PROFILES[profile].aggregation, spec.options())),
    }
    return ExportRequest(**{**values, **changes})
