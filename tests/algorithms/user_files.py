"""A user's own algorithms, as files."""

from pathlib import Path

# FedAvg in which a client's weight is a power of its size; a file that a user could write.
BY_SIZE = '''\
"""FedAvg in which a client of n examples weighs n ** size_power."""

import dataclasses

import tensorflow as tf

from tff_agnostic.algorithms.fed_avg import FedAvgOptions, train_without_domain_pass
from tff_agnostic.computations.algorithm import Algorithm, AlgorithmSpec, Exchange
from tff_agnostic.computations.client_output import (
    TrainingBroadcast,
    domain_sums,
    training_output_bounds,
)
from tff_agnostic.computations.local_training import LocalTrainingOptions
from tff_agnostic.computations.server import (
    TrainingState,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.models.model import Model
from tff_agnostic.settings import part_of, setting


@dataclasses.dataclass(frozen=True)
class Options(FedAvgOptions):
    size_power: float = setting(1.0, "Power of a client's size that it weighs.", at_least=0.0)


@dataclasses.dataclass(frozen=True)
class Client:
    model: Model
    num_domains: int
    training: LocalTrainingOptions
    power: float

    def __call__(self, weights, clients, seed, per_client):
        broadcast = TrainingBroadcast(weights, tf.ones([self.num_domains]))
        output = train_without_domain_pass(
            self.model, self.num_domains, self.training, broadcast, clients, seed, per_client
        )

        def powered(delta, n):
            factor = tf.math.divide_no_nan(n**self.power, n)
            return [factor * d for d in delta], factor * n

        delta, beta = per_client(powered, output.weighted_delta, output.beta)
        return output._replace(weighted_delta=delta, beta=beta)


def by_size(problem, options):
    model, optimizer = problem.model, options.build_server_optimizer()

    def finish(state, sums):
        (total,) = sums
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, total.weighted_delta, total.beta
        )
        report = training_report(
            model, domain_sums(total), total.clients, update.update_norm, domain_weights={}
        )
        return TrainingState(update.weights, update.optimizer_state), report

    def bounds(limits):
        return training_output_bounds(model, limits, limits.max_examples**options.size_power)

    training = part_of(options, LocalTrainingOptions)
    client = Client(model, problem.num_domains, training, options.size_power)
    return Algorithm(
        name="by_size",
        initialize=lambda: initial_training_state(model, optimizer),
        exchanges=(Exchange("training", lambda state, sums: state.weights, client, bounds),),
        finish=finish,
        models=lambda state: {"model": state.weights},
        quantities=training_quantities(model, {}, while_training=True),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
    )


ALGORITHM = AlgorithmSpec("By size", "none", by_size, Options)
'''


def write_by_size(path: Path, *changes: tuple[str, str]) -> Path:
    """Writes that file, with texts replaced by others.

    Args:
        path: Where to.
        *changes: (text that is there once, text in its place).
    """
    source = BY_SIZE
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path.write_text(source)
    return path
