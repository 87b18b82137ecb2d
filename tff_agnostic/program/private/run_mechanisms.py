"""What the rounds of a private run release, as accountants see it: by the kind of its noise."""

import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Guarantee
from tff_agnostic.aggregations.private.distributed_sum import DistributedSum
from tff_agnostic.aggregations.private.options import DistributedOptions
from tff_agnostic.aggregations.private.registry import PRIVACIES, NoiseFacts
from tff_agnostic.computations.aggregated import AggregatedRound, SumsSoFar
from tff_agnostic.computations.client_group import Place, group_of_one, one_client
from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.data.sampling import domain_strata, num_turns
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.distributed_mechanism import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanism import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import (
    CohortSampling,
    FixedSizeCohorts,
    NoiseOfClients,
    PoissonCohorts,
    StratifiedCohorts,
    noise_of_clients,
)
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.program.private.run_keys import noise_key
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.task import Task

# From a noise multiplier to what a round releases with it.
MechanismOf = Callable[[float], Mechanism]


def _fixed_size(spec: RunSpec, task: Task) -> CohortSampling:
    return FixedSizeCohorts(len(task.train.client_ids), spec.config.clients_per_round)


def _poisson(spec: RunSpec, task: Task) -> CohortSampling:
    return PoissonCohorts(len(task.train.client_ids), spec.config.clients_per_round)


def _stratified(spec: RunSpec, task: Task) -> CohortSampling:
    _, sizes = np.unique(domain_strata(task.train, task.num_domains), return_counts=True)
    return StratifiedCohorts(tuple(map(int, sizes)), spec.config.clients_per_round)


_SAMPLED: Registry[Callable[[RunSpec, Task], CohortSampling]] = Registry(
    "sampled cohort", {"poisson": _poisson, "uniform": _fixed_size, "stratified": _stratified}
)


def _sampling(spec: RunSpec, task: Task) -> CohortSampling:
    name = spec.config.cohort_sampling
    if name not in _SAMPLED:
        raise UserError(
            f"--cohort_sampling: expected {', '.join(_SAMPLED)} with "
            f"--privacy={spec.config.privacy}, whose account is of cohorts that are drawn by "
            f"chance, found {name}"
        )
    return _SAMPLED[name](spec, task)


def _central(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    del algorithm
    sampling = _sampling(spec, task)
    return lambda noise_multiplier: CentralNoise(float(noise_multiplier), sampling)


def _tree(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    del algorithm
    config = spec.config
    if config.cohort_sampling != "turns":
        raise UserError(
            "--cohort_sampling: expected turns with --privacy=tree, whose account is of how often "
            f"a client takes part, found {config.cohort_sampling}"
        )
    separation = num_turns(len(task.train.client_ids), config.clients_per_round)
    participations = Participations(
        max_participations=math.ceil(config.rounds / separation),
        min_separation=separation,
        restart_every=spec.privacy.tree_restart_every,
    )
    return lambda noise_multiplier: TreeNoise(float(noise_multiplier), participations)


def _distributed(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    inner = spec.build_aggregation()
    if Guarantee.SECURE_SUMS not in inner.guarantees:
        raise UserError(
            "--aggregation: expected secure with --privacy=distributed, where a client's own noise "
            f"hides it in a sum only whose parts nobody sees, found {spec.config.aggregation}"
        )
    whose, steps = noise_of_run(spec, task), spec.privacy.integer_clip
    # Groups and their sizes do not depend on the noise.
    facts = NoiseFacts(float(spec.config.clients_per_round), noise_key(spec.privacy), 1.0)
    build = PRIVACIES[spec.config.privacy].build
    assert build is not None
    release = build(spec.config.privacy, inner, spec.privacy, facts)
    groups = _groups(AggregatedRound(algorithm, release))
    return lambda noise_multiplier: DistributedNoise(
        tuple(IntegerGroup(factor * float(noise_multiplier), steps, d) for factor, d in groups),
        "skellam",
        *whose,
    )


def noise_of_run(spec: RunSpec, task: Task) -> NoiseOfClients:
    """Returns whose noise the rounds of a run have where clients add it.

    Raises:
        UserError: If there are not as many clients.
    """
    options = spec.privacy
    assert isinstance(options, DistributedOptions)
    if "secret_participation" in spec.given and spec.config.cohort_sampling != "poisson":
        raise UserError(
            "--secret_participation: expected --cohort_sampling=poisson, found "
            f"{spec.config.cohort_sampling}, with which the number of clients is public"
        )
    return noise_of_clients(
        _sampling(spec, task),
        options.secret_participation,
        options.answering_clients,
        options.privacy_min_clients,
        spec.build_aggregation().min_clients,
    )


def _groups(round_: AggregatedRound) -> list[tuple[float, int]]:
    """Returns z_g / z and the number of integers of each group of all exchanges."""
    found: list[tuple[float, int]] = []
    state = _traced(round_.initialize)
    message, so_far = _traced(round_.start, state), SumsSoFar()
    kept: Any = ()
    last = len(round_.exchanges) - 1
    for k, exchange in enumerate(round_.exchanges):
        release = exchange.aggregation
        assert isinstance(release, DistributedSum)

        def work(message: Any, examples: Any, kept: Any, exchange: Any = exchange) -> Any:
            client = group_of_one(examples, kept, place=Place(tf.constant(0), tf.constant(0)))
            return exchange.client_work(message, client, one_client)

        encoded, now_kept = _traced(work, message, dict(round_.client_data_spec), kept)
        kept = now_kept if exchange.exchange.keeps else kept
        codecs = release.codecs(tf.nest.flatten(encoded.values), exchange.bounds)
        sizes = [codec.size for codec in codecs]
        found.extend(zip(release.noise_factors(exchange.bounds), sizes))
        if k < last:
            message, so_far = _traced(round_.go_on, state, so_far, encoded)
    return found


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns specs of what a function of tensors of some specs returns."""
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )


MECHANISMS: Registry[Callable[[RunSpec, Task, Algorithm], MechanismOf]] = Registry(
    "privacy", {"central": _central, "distributed": _distributed, "tree": _tree}
)
