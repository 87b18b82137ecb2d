"""Users' models train equally in every client mode, and respect masks and causality."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.runtimes.user_models import USER_MODELS
from tests.support import golden
from tests.support.comparing import assert_all_close
from tests.support.marks import usually
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import FedAvgOptions, Problem
from tff_agnostic.algorithms.fed_avg import fed_avg
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import Model, load_user_model
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.client_work import CLIENT_MODES, CompiledClientWork
from tff_agnostic.runtimes.cohort import CohortRuntime, CohortTraining, SumOnLanes
from tff_agnostic.runtimes.options import CohortOptions

_NUM_DOMAINS = 3
_REFUSED = "client_mode: expected auto or streamed with this model, found vectorised: TensorFlow "


def _model(folder: Path, name: str) -> Model:
    path = folder / "my_model.py"
    path.write_text(USER_MODELS[name].source())
    return load_user_model(path, USER_MODELS[name].data)


def _cohorts(name: str) -> list[list[dict[str, Any]]]:
    rng = np.random.default_rng(0)
    draw = functools.partial(USER_MODELS[name].client, rng, num_domains=_NUM_DOMAINS)
    return [[draw(size=size) for size in sizes] for sizes in ((5, 1, 3), (2, 4))]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    usually(
        ["two classes of embedded categories", "images and numbers", "a subclass"], USER_MODELS
    ),
)
def test_client_modes_give_equal_rounds(
    tmp_path: Path, name: str, cohort_runtime: CohortRuntime, capfd: pytest.CaptureFixture
) -> None:
    model = _model(tmp_path, name)
    options = make_options(FedAvgOptions, client_learning_rate=0.3, client_batch_size=2)
    algorithm = fed_avg(Problem.numbered(model, _NUM_DOMAINS), options)
    # All modes share the traces of client work.
    compiled = functools.lru_cache(CompiledClientWork)

    def train(mode: str) -> Any:
        def sum_over_clients(work: Any) -> SumOnLanes:
            return SumOnLanes(
                compiled(work), CohortOptions(client_mode=mode), cohort_runtime.running_lanes
            )

        training = CohortTraining(algorithm, PlainSum(), sum_over_clients)
        state, reports = run_rounds(training, _cohorts(name))
        return state.algorithm.weights, reports

    capfd.readouterr()
    weights, reports = train("streamed")
    assert all(report["clients"]["contributed"] > 1 for report in reports)
    assert all(np.all(np.isfinite(weight)) for weight in weights.trainable)
    # Some weights may stay, as attention does not depend on the bias of its keys.
    assert not all(map(np.array_equal, model.initial_weights.trainable, weights.trainable))
    for mode in [mode for mode in CLIENT_MODES if mode != "streamed"]:
        if mode == "vectorised" and not USER_MODELS[name].can_be_vectorised:
            assert golden.refusal(train, mode).startswith(_REFUSED)
            continue
        assert_all_close(train(mode), (weights, reports), rtol=1e-5, atol=1e-5)
    # In the automatic mode, models that cannot be vectorised are streamed without a message.
    assert capfd.readouterr().err == ""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["bidirectional GRU of texts", "Transformer of texts"])
def test_masked_padding_has_no_effect(tmp_path, name):
    model = _model(tmp_path, name)
    weights = [np.array(w) for w in model.initial_weights.trainable]
    x = tf.constant([[3, 5, 0], [2, 0, 0], [4, 1, 2]])
    scores = []
    for padding_vector in (0.0, 9.0):
        weights[0][0] = padding_vector
        tensors = ModelWeights([tf.constant(weight) for weight in weights], [])
        result = model.predict(tensors, x, False, tf.zeros([2], tf.int32))
        scores.append(result.numpy())
    np.testing.assert_allclose(*scores, atol=1e-6)
    assert np.any(scores[0][0] != scores[0][1])


@pytest.mark.slow
def test_transformer_does_not_look_ahead(tmp_path):
    model = _model(tmp_path, "Transformer of next words")
    first, second = (
        model.predict(model.initial_weights, tf.constant([ids]), False, tf.zeros([2], tf.int32))
        for ids in ([1, 2, 3], [1, 2, 6])
    )
    np.testing.assert_allclose(first[:, :2], second[:, :2], atol=1e-6)
    assert np.any(first[:, 2] != second[:, 2])
