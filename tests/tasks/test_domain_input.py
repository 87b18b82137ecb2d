"""Models with the domain as an input, which adds a learned vector per domain to the scores."""

from pathlib import Path

import numpy as np
import pytest

from binaries import save_model, train
from tests.support.commands import Caller
from tests.support.stores import sentence, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.later import tf
from tff_agnostic.data.clients import InMemoryClients, client_domain_counts
from tff_agnostic.models.classifiers import logistic_regression
from tff_agnostic.models.keras import freeze, last_layer, model_from_keras
from tff_agnostic.models.metrics import SentenceLoss, sparse_cross_entropy
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.tasks.domain_input import LAYER, ClientsWithDomain, with_domain

_LABELS = tf.TensorSpec([None], tf.int32)
_SEED = np.zeros(2, np.int32)


def _random(model, rng):
    return ModelWeights(
        *(
            [tf.constant(rng.normal(size=np.shape(w)), tf.float32) for w in ws]
            for ws in model.initial_weights
        )
    )


def _vectors(model):
    """Returns the index of the domains' vectors among the trainable weights."""
    (vectors,) = model.keras_model.get_layer(LAYER).trainable_weights
    return next(k for k, w in enumerate(model.keras_model.trainable_weights) if w is vectors)


def _network(x_spec, *layers):
    """Returns a model with three scores, [n, 3] or [n, steps, 3]."""
    keras = tf.keras.layers
    return model_from_keras(
        lambda: tf.keras.Sequential(
            [tf.keras.Input(x_spec.shape[1:], dtype=x_spec.dtype), *layers, keras.Dense(3)]
        ),
        loss=SentenceLoss() if x_spec.dtype == tf.int32 else sparse_cross_entropy,
        example_spec={"x": x_spec, "y": x_spec if x_spec.dtype == tf.int32 else _LABELS},
        seed=1,
    )


def _convolutions():
    layers = tf.keras.layers
    spec = tf.TensorSpec([None, 4, 4, 1])
    return _network(spec, layers.Conv2D(2, 2, activation="relu"), layers.Flatten())


def _words():
    layers = tf.keras.layers
    spec = tf.TensorSpec([None, 4], tf.int32)
    return _network(spec, layers.Embedding(9, 4), layers.SimpleRNN(3, return_sequences=True))


@pytest.mark.parametrize(
    "model",
    [lambda: logistic_regression(4, 3), _convolutions, _words],
    ids=["linear", "cnn", "rnn"],
)
def test_domain_vector_is_added_to_scores(model):
    rng = np.random.default_rng(0)
    model = model()
    wider = with_domain(model, 4)
    k = _vectors(wider)
    # Initially the domains' vectors are zero; all other weights equal the wrapped model's.
    start = list(wider.initial_weights.trainable)
    assert not start.pop(k).any()
    for actual, expected in zip(start, model.initial_weights.trainable, strict=True):
        np.testing.assert_array_equal(actual, expected)

    weights = _random(wider, rng)
    rest = ModelWeights([w for i, w in enumerate(weights.trainable) if i != k], [])
    spec = model.example_spec["x"]
    x = tf.cast(rng.integers(0, 9, [5, *spec.shape[1:]]), spec.dtype)
    domain = np.array([3, 0, 2, 2, 0], np.int32)
    scores = model.predict(rest, x, False, _SEED).numpy()
    result = wider.predict(weights, {"x": x, "domain": tf.constant(domain)}, False, _SEED)
    vectors = weights.trainable[k].numpy()[domain]
    expected = scores + vectors.reshape(5, *[1] * (scores.ndim - 2), -1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
    # `last_layer` is that of the wrapped model; the domains' vectors can be all that is trained.
    layer = last_layer(model)
    assert last_layer(wider).name == layer.name
    alone = freeze(wider, [layer.name, *layer.others])
    assert [np.shape(w) for w in alone.initial_weights.trainable] == [(4, scores.shape[-1])]


def test_domain_gradients_equal_one_hot_linear_model():
    """The gradient is (softmax - one-hot label) times [x, one-hot domain]."""
    rng = np.random.default_rng(1)
    wider = with_domain(logistic_regression(4, 3), 2)
    weights, k = _random(wider, rng), _vectors(wider)
    x = rng.normal(size=[6, 4]).astype(np.float32)
    y, domain = rng.integers(0, 3, 6).astype(np.int32), np.array([0, 1, 1, 0, 1, 1], np.int32)
    examples = {"x": {"x": tf.constant(x), "domain": tf.constant(domain)}, "y": tf.constant(y)}
    with tf.GradientTape() as tape:
        tape.watch(weights.trainable)
        losses, _ = wider.example_losses(weights, examples, True, _SEED)
        mean = tf.reduce_mean(losses)
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(mean, weights.trainable)]

    kernel, bias = (w.numpy() for i, w in enumerate(weights.trainable) if i != k)
    inputs = np.concatenate([x, np.eye(2)[domain]], axis=1)
    matrix = np.concatenate([kernel, weights.trainable[k].numpy()])
    scores = inputs @ matrix + bias
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mean, -np.log(chances[np.arange(6), y]).mean(), rtol=1e-5)
    expected = inputs.T @ (chances - np.eye(3)[y]) / 6
    np.testing.assert_allclose(gradients[k], expected[4:], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[1 if k == 0 else 0], expected[:4], rtol=1e-4, atol=1e-6)


def test_clients_with_domain_input_contain_domain_ids():
    examples = {
        "x": np.array([[1.0], [2.0], [3.0]], np.float32),
        "y": np.array([7, 8, 9], np.int32),
        "domain_id": np.array([1, 0, 1], np.int32),
    }
    clients = ClientsWithDomain(InMemoryClients({"a": examples}))
    result = clients.read("a")
    np.testing.assert_array_equal(result["x"]["domain"], [1, 0, 1])
    np.testing.assert_array_equal(result["x"]["x"], examples["x"])
    assert result["y"] is examples["y"] and clients.client_domain_counts() is None
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[1, 2]])
    arrays = ClientsWithDomain(InMemoryClients({"a": {**examples, "x": {"b": examples["x"]}}}))
    assert sorted(arrays.read("a")["x"]) == ["b", "domain"]


def _from_probabilities():
    return model_from_keras(
        lambda: tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(3, "softmax")]),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(reduction="none"),
        example_spec={"x": tf.TensorSpec([None, 2]), "y": _LABELS},
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: unigram_model(3), "a task with a Keras model, found another model"),
        (_from_probabilities, "a model whose outputs are scores or numbers, to which"),
        (
            lambda: with_domain(logistic_regression(2, 2), 2),
            "model inputs without the name 'domain', found x, domain",
        ),
    ],
)
def test_adding_domain_input_rejects_unsuitable_models(model, message):
    with pytest.raises(UserError, match=f"^domain_input: expected {message}"):
        with_domain(model(), 2)


def test_domain_input_rejects_domains_equal_to_classes():
    with pytest.raises(UserError, match=r"^--domain_input: expected none, "):
        resolve("digits", {"domain_input": "embedding"}, {}).load_task()


_MODEL = """
import tensorflow as tf
from tff_agnostic.models import SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    scores = tf.keras.layers.Embedding(data.num_ids, data.num_ids)(x)
    return tf.keras.Model(x, scores), SentenceLoss()
"""
_RUN = (
    *("--task=custom", "--data=s.sqlite", "--model=model.py", "--sequence_length=3"),
    *("--clients_per_round=2", "--rounds=2", "--client_learning_rate=1", "--server_optimizer=sgd"),
)


@pytest.mark.nightly
def test_domain_input_learns_different_words_per_domain(streaming_runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = Caller({"cohort": streaming_runtime})
    rows = [
        (split, sentence(client, domain, words))
        for split in ("train", "test")
        for client in ("x", "y")
        for domain, words in (("answer", "a a"), ("question", "b b"))
    ]
    write_store(Path("s.sqlite"), rows, "text", vocabulary={"a": 3, "b": 2})
    Path("model.py").write_text(_MODEL)
    call.ok(train, *_RUN, "--domain_input=embedding", "--output_dir=run")
    again = ["--domain_input=none", "--output_dir=run", "--resume"]
    message = call.refused(tmp_path, train, *_RUN, *again)
    assert "--domain_input is embedding there and none here" in message
    outcome = call(save_model, "--checkpoint=run", "--output_dir=saved")
    assert outcome.status == 0 and "predicts as the run's model does, by 0 at" in outcome.out
    card = read_json(Path("saved", "model_card.json"))
    assert card["inputs"] == {"x": "int32[None, 3]", "domain": "int32[None]"}
    assert card["table"]["domain_is_an_input"] is True
    assert card["table"]["inputs"]["domain"] == {
        **{"is": "domain", "column": None, "values": ["answer", "question"]}
    }
    model = tf.keras.models.load_model(Path("saved", "model.keras"), compile=False)
    begin = np.array([[5, 0, 0]] * 2, np.int32)
    scores = model({"x": begin, "domain": np.array([0, 1], np.int32)}).numpy()[:, 0]
    # Ids: a = 1, b = 2, begin = 5. Only the domain differs between the two inputs.
    assert scores[0, 1] > scores[0, 2] and scores[1, 1] < scores[1, 2]
