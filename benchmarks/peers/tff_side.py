"""Benchmark process that runs TFF's `build_weighted_fed_avg` with `tf.data` clients."""

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.timing.side import Side
from benchmarks.timing.workloads import Workload
from tff_agnostic.runtimes.tff import TffRuntime


def emnist_cnn(workload: Workload) -> tf.keras.Model:
    """Returns the CNN of Reddi et al. 2021."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu", input_shape=workload.features),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPool2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(workload.classes),
        ]
    )


def next_word_lstm(workload: Workload) -> tf.keras.Model:
    """Returns the LSTM of Reddi et al. 2021."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Embedding(workload.classes, 96, mask_zero=True, input_shape=[None]),
            layers.LSTM(670, return_sequences=True),
            layers.Dense(96),
            layers.Dense(workload.classes),
        ]
    )


def logistic(workload: Workload) -> tf.keras.Model:
    """Returns softmax regression."""
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(workload.classes, input_shape=workload.features)]
    )


MODELS = {"emnist_cnn": emnist_cnn, "next_word_lstm": next_word_lstm, "logistic": logistic}


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    workload = side.workload
    datasets = [
        tf.data.Dataset.from_tensor_slices((client["x"], client["y"]))
        .shuffle(workload.examples)
        .batch(workload.batch_size)
        for client in side.clients()
    ]

    def model_fn() -> tff.learning.models.VariableModel:
        return tff.learning.models.from_keras_model(
            MODELS[workload.model](workload),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=datasets[0].element_spec,
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(workload.learning_rate),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    # Replace TFF's default context, whose worker process would outlive this process.
    with TffRuntime():
        state = process.initialize()
        weights = process.get_model_weights(state).trainable
        for _ in side.rounds(sum(w.size for w in weights), ["tensorflow-federated", "tensorflow"]):
            state = process.next(state, datasets).state


if __name__ == "__main__":
    main()
