"""Benchmark process that runs FedJAX's `fed_avg` or `agnostic_fed_avg` with FedJAX's models."""

import os
from typing import Any

# JAX reads this variable when it is imported.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.cpu_count()}"

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from fedjax.algorithms import agnostic_fed_avg, fed_avg

from benchmarks.timing.side import Side
from benchmarks.timing.workloads import Workload


def logistic(workload: Workload) -> fedjax.Model:
    """Returns softmax regression, implemented as in FedJAX's tutorials."""
    sample = {
        "x": jnp.zeros((1, *workload.features), jnp.float32),
        "y": jnp.zeros((1,), jnp.int32),
    }
    return fedjax.create_model_from_haiku(
        hk.transform(lambda batch: hk.Linear(workload.classes)(batch["x"])),
        sample_batch=sample,
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], scores
        ),
        eval_metrics={},
    )


MODELS = {
    "emnist_cnn": lambda _: fedjax.models.emnist.create_conv_model(only_digits=False),
    "next_word_lstm": lambda workload: fedjax.models.stackoverflow.create_lstm_model(
        expected_length=float(workload.labels[0])
    ),
    "logistic": logistic,
}


def make_fed_avg(model: fedjax.Model, workload: Workload) -> fedjax.FederatedAlgorithm:
    """Returns FedJAX's FedAvg with the workload's hyperparameters."""
    return fed_avg.federated_averaging(
        grad_fn=fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(workload.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(workload.batch_size),
    )


def make_agnostic(model: fedjax.Model, workload: Workload) -> fedjax.FederatedAlgorithm:
    """Returns FedJAX's AgnosticFedAvg with the workload's hyperparameters."""

    def per_example_loss(params: Any, batch: Any, rng: Any) -> jnp.ndarray:
        return model.train_loss(batch, model.apply_for_train(params, batch, rng))

    p = workload.domains
    return agnostic_fed_avg.agnostic_federated_averaging(
        per_example_loss=per_example_loss,
        client_optimizer=fedjax.optimizers.sgd(workload.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(workload.batch_size),
        domain_batch_hparams=fedjax.PaddedBatchHParams(workload.domain_pass_batch),
        init_domain_weights=[1.0 / p] * p,
        domain_learning_rate=0.01,
        domain_window_size=1,
        init_domain_window=[1.0] * p,
    )


# FedJAX's backends: one client at a time on all cores, or one device per core in parallel.
BACKENDS = {"one device": "jit", "a device for each core": "pmap"}
ALGORITHMS = {"fed_avg": make_fed_avg, "agnostic_fed_avg": make_agnostic}


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    workload = side.workload
    model = MODELS[workload.model](workload)
    algorithms = {}
    for setting, backend in BACKENDS.items():
        with fedjax.for_each_client_backend(backend):
            algorithms[setting] = ALGORITHMS[side.algorithm](model, workload)
    key = jax.random.PRNGKey(0)
    params = model.init(key)
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    state = next(iter(algorithms.values())).init(params)
    datasets = [fedjax.ClientDataset(client) for client in side.clients()]
    rounds = side.setting_rounds(parameters, ["fedjax", "jax", "dm-haiku"], list(algorithms))
    for number, setting in enumerate(rounds):
        keys = jax.random.split(jax.random.fold_in(key, number), len(datasets))
        cohort = [(str(k), dataset, keys[k]) for k, dataset in enumerate(datasets)]
        state, _ = algorithms[setting].apply(state, cohort)
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    main()
