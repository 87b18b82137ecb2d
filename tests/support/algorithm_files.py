"""A file with a user's own algorithm."""

from pathlib import Path

BY_SIZE = '''\
"""FedAvg in which a client of n examples weighs n ** size_power."""

import dataclasses
from typing import Annotated

import tensorflow as tf

from tff_agnostic import computations as core
from tff_agnostic.algorithms.fed_avg import client_work
from tff_agnostic.base.options import Within


@dataclasses.dataclass(frozen=True)
class Options(core.AveragingOptions):
    """Options of the algorithm.

    Attributes:
        size_power: Power of a client's size that it weighs.
    """

    size_power: Annotated[float, Within(least=0)] = 1.0


def weighted_work(weights, clients, *, model, num_domains, training, power):
    broadcast = core.Broadcast(weights, tf.ones([num_domains]))
    output = client_work(
        broadcast, clients, model=model, num_domains=num_domains, training=training
    )

    def powered(delta, n):
        factor = tf.math.divide_no_nan(n**power, n)
        return [factor * d for d in delta], factor * n

    delta, beta = clients.map(powered, output.weighted_delta, output.beta)
    return output._replace(weighted_delta=delta, beta=beta)


def by_size(problem, options):
    model, optimizer = problem.model, options.server.build(problem.model)

    def finish(state, total):
        return core.average_and_apply(optimizer, state, total.weighted_delta, total.beta)

    def bounds(limits):
        heaviest = limits.examples**options.size_power
        return core.training_bounds(model, heaviest)(limits)

    work = core.HashablePartial(
        weighted_work,
        model=model,
        num_domains=problem.num_domains,
        training=options.client,
        power=options.size_power,
    )
    return core.Algorithm(
        name="by_size",
        problem=problem,
        initialize=lambda: core.initial_model(model, optimizer),
        steps=(core.CommunicationStep("training", lambda state: state.weights, work, bounds),),
        finish=finish,
        columns=core.training_columns(model, while_training=True),
    )


ALGORITHM = core.AlgorithmSpec("By size", "none", by_size, Options)
'''


def write_by_size(path: Path, *changes: tuple[str, str]) -> Path:
    """Writes `BY_SIZE` to a file and returns its path.

    Args:
        path: The written file.
        *changes: Pairs of a string that occurs once in `BY_SIZE`, and its replacement.
    """
    source = BY_SIZE
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path.write_text(source)
    return path
