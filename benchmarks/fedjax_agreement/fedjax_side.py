"""Runs `fedjax.algorithms.agnostic_fed_avg` on a problem, in an environment with FedJAX.

Usage: fedjax_side.py PROBLEM.npz TRAJECTORY.npz
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
from fedjax.algorithms import agnostic_fed_avg
from problem import Problem, Trajectory, load_problem, save_trajectory


class PaperBatches(fedjax.ClientDataset):
    """A data set with the paper's batches, in which an epoch's last batch may be smaller.

    See line 7 of the paper's CLIENT procedure. FedJAX's `shuffle_repeat_batch` fills the last batch
    with examples of the next epoch.
    """

    def shuffle_repeat_batch(self, hparams: fedjax.ShuffleRepeatBatchHParams) -> Sequence[Any]:
        """Returns the batches of all epochs, without shuffling."""
        one_epoch = list(self.batch(batch_size=hparams.batch_size))
        return one_epoch * hparams.num_epochs


def cross_entropy(params: Any, batch: Any, rng: Any) -> jnp.ndarray:
    """Returns each example's loss."""
    del rng
    scores = batch["x"] @ params["matrix"] + params["offsets"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["y"][:, None], axis=1)[:, 0]


def run(problem: Problem) -> Trajectory:
    """Runs all rounds of a problem."""
    settings = problem.settings
    algorithm = agnostic_fed_avg.agnostic_federated_averaging(
        per_example_loss=cross_entropy,
        client_optimizer=fedjax.optimizers.sgd(settings.client_learning_rate),
        server_optimizer=fedjax.optimizers.sgd(
            settings.server_learning_rate, momentum=settings.server_momentum or None
        ),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            settings.batch_size, num_epochs=settings.epochs, skip_shuffle=True
        ),
        domain_batch_hparams=fedjax.PaddedBatchHParams(settings.batch_size),
        init_domain_weights=settings.initial_weights,
        domain_learning_rate=settings.domain_learning_rate,
        domain_window_size=settings.window_size,
        init_domain_window=settings.initial_counts,
    )
    make_dataset = fedjax.ClientDataset if settings.own_batches else PaperBatches
    datasets = [make_dataset(client) for client in problem.clients]
    state = algorithm.init(
        {"matrix": jnp.asarray(problem.matrix), "offsets": jnp.asarray(problem.offsets)}
    )
    key = jax.random.PRNGKey(0)
    rounds = []
    for cohort in problem.cohorts:
        state, _ = algorithm.apply(state, [(str(k), datasets[k], key) for k in cohort])
        rounds.append(
            (
                state.params["matrix"],
                state.params["offsets"],
                state.domain_weights,
                jnp.stack(state.domain_window),
            )
        )
    return Trajectory.stacked(rounds)


if __name__ == "__main__":
    save_trajectory(run(load_problem(Path(sys.argv[1]))), Path(sys.argv[2]))
