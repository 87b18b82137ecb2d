"""Random combinations of a training's choices, and synthetic clients for two rounds."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.random_combinations.tasks import ENSEMBLE, TASKS, Task
from tests.support.algorithms import builder_arguments
from tests.support.options import make_options
from tests.support.runtimes import ClientsInMemory
from tests.support.sums import private_sum
from tff_agnostic.aggregations.aggregation import LimitedOptions, PlainSum
from tff_agnostic.aggregations.registry import UPDATE_AGGREGATORS, named
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS, AlgorithmSpec, Problem
from tff_agnostic.algorithms.saddle_point import drawn_by_lambda, one_drawn_loss
from tff_agnostic.algorithms.tail_thresholds import (
    LaggedThreshold,
    PaperBoundary,
    RefinedThreshold,
    SmoothBoundary,
    SurveyThreshold,
    TrackedThreshold,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Options
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.computations import Algorithm
from tff_agnostic.computations.schedules import (
    Cosine,
    Exponential,
    InverseSqrt,
    InverseTime,
    Piecewise,
)
from tff_agnostic.computations.server import Adagrad, Adam, Momentum, Nesterov, Yogi
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.domain_weights.ascent import (
    PESSIMISM,
    Cvar,
    ExponentiatedGradient,
    Fixed,
    ProjectedGradient,
    chi2,
)
from tff_agnostic.domain_weights.ball import BallSet
from tff_agnostic.domain_weights.sets import BoxSet, HullSet
from tff_agnostic.program.options.flags import option_flags

ROUNDS, SEEDS_PER_GROUP = 2, 4
_CLIENTS, _CLIENTS_PER_ROUND, _MAX_EXAMPLES = 10, 4, 6
_SECURE = make_options(
    SecureSumOptions,
    limit_examples=20,
    limit_loss=1e4,
    limit_update=50.0,
    secure_bits=40,
    secure_min_clients=1,
)
_MIXTURES = Path(__file__).with_name("mixtures.json")
# Algorithms, repeated by frequency: algorithms with more settings occur more often.
_ALGORITHMS = (
    *["agnostic_fed_avg"] * 5,
    *["stochastic_afl"] * 3,
    *["delta_fl"] * 3,
    *["term", "q_ffl"] * 2,
    *("fed_avg", "fed_prox", "fed_avg_sub", "fed_avg_target_only", "fed_boost", "afl_boost"),
)
# Relative frequencies of sums. Sums that TFF compiles, which takes seconds, are rare.
_SUMS = {
    "plain": 80,
    "secure": 6,
    "central": 8,
    "tree": 4,
    "distributed": 1.5,
    "tff/robust": 0.2,
    "tff/compressed": 0.2,
    "tff/secure": 0.1,
}
# Values by flag or argument of a builder, in addition to the defaults.
_POOL: Mapping[str, Sequence[Any]] = {
    "client_learning_rate": (0.05, 0.3),
    "client_epochs": (1, 2),
    "client_batch_size": (2, 3, 100),
    "client_normalizer": ("client", "batch"),
    "client_shuffle": (False, False, True),
    "client_schedule": (InverseTime(1), InverseSqrt(3), Exponential(3, 0.5), Cosine(3, 0.5)),
    "server_optimizer": (Momentum(0.5), Nesterov(0.0), Adagrad(), Adam(), Yogi(0.5)),
    "server_learning_rate": (0.1, 0.5),
    "server_schedule": (Piecewise((1,), (0.3,)), InverseTime(1)),
    "client_weighting": ("equal",),
    "measured_share": (0.4,),
    "lambda_update": (
        *(ExponentiatedGradient(), ProjectedGradient(), Fixed()),
        *(Cvar(0.4), Cvar(1.0, 1.0)),
    ),
    "lambda_learning_rate": (0.1, 1.0),
    "lambda_absent": ("freeze", "zero"),
    "slope": (chi2(0.2), chi2(0.2, PESSIMISM)),
    "lambda_set": (
        *(BoxSet((0.1,)), BoxSet(None, (0.6,)), BoxSet((0.3, 0.0, 0.1), (0.5, 0.4, 0.9))),
        *(BallSet(0.05), BallSet(0.5), BallSet(5.0), HullSet(_MIXTURES)),
    ),
    "lambda_initial": ((0.5, 0.2, 0.3), (0.0, 0.4, 0.6)),
    "initial_counts": ((4.0, 1.0, 2.5),),
    "lambda_baselines": ((0.4, 1.0, 0.1),),
    "window": (2,),
    "loss_estimate": ("ratio", "unbiased"),
    "weights_gradient": (drawn_by_lambda,),
    "lambda_gradient": (one_drawn_loss,),
    "decay": (tf.math.rsqrt, tf.math.reciprocal),
    "optimistic": (True,),
    "weights_radius": (1.0,),
    "sample_size": (3,),
    "mu": (0.0, 0.7),
    "q": (0.0, 0.5, 3.0),
    "tilt": (-1.0, 0.0, 2.0),
    "cohort_share": (0.6, 1.0),
    "target_domain": ("0", "1"),
    "theta": ((1.0,), (0.3,), (0.6, 1.0, 0.1)),
    "threshold": (
        *(LaggedThreshold(), TrackedThreshold(), RefinedThreshold()),
        *(SurveyThreshold(2), RefinedThreshold(2)),
    ),
    "boundary": (PaperBoundary(), SmoothBoundary(0.5)),
    "predictor_sampling": ("none", "uniform"),
    "budget": (1, 3),
    "predictor_draw": ("independent",),
    "mirror_map": ("euclidean", "squared"),
    "alpha_learning_rate": (0.5,),
    "repetitions": (2,),
    "mean_first": (True,),
    "weighs_by_cohort": (True,),
}
_REQUIRED = ("client_shuffle", "target_domain", "q", "tilt", "theta")
_PER_DOMAIN = ("lambda_set", "lambda_initial", "lambda_baselines", "initial_counts")


@dataclasses.dataclass(frozen=True)
class Combination:
    """A combination of choices for a training.

    Attributes:
        seed: Seed of the weights and of the clients.
        group: Seed of all choices on which a trace depends: algorithm, settings, task, sums and
            runtime.
        algorithm: Key in `ALGORITHMS`.
        settings: The algorithm's non-default settings and arguments of its builder.
        task: Key in `TASKS`, or "ensemble".
        sums: Key in `_SUMS`.
        runtime: "streamed", "vectorised" or "tff".
        sampling: Key in `COHORT_SAMPLINGS`.
        domains: Domain names, in the order of domain ids.
        absent: Ids of domains that are absent from the first round.
        odd_clients: Unusual clients in the first cohort, "empty" or "not finite".
        factor: Factor of all losses.
        shift: Constant added to all losses.
    """

    seed: int
    group: int
    algorithm: str
    settings: Mapping[str, Any]
    task: str = "classes"
    sums: str = "plain"
    runtime: str = "streamed"
    sampling: str = "uniform"
    domains: tuple[str, ...] = ("0", "1", "2")
    absent: tuple[int, ...] = ()
    odd_clients: tuple[str, ...] = ()
    factor: float = 1.0
    shift: float = 0.0

    @property
    def spec(self) -> AlgorithmSpec:
        return ALGORITHMS[self.algorithm]

    @property
    def options(self) -> Any:
        return make_options(self.spec.options, **_by_flag(self.spec.options, self.settings))

    @property
    def is_private(self) -> bool:
        """Whether sums have noise."""
        return self.sums in ("central", "tree", "distributed")

    def build(self) -> Algorithm:
        model = self.the_task.model(self.seed, self.factor, self.shift)
        counts = tuple(self.expected_counts().tolist())
        problem = Problem(model, self.domains, self.group, counts)
        arguments = builder_arguments(self.spec.build, self.settings)
        return self.spec.build(problem, self.options, **arguments)

    def traced(self) -> "Combination":
        """Returns the choices on which a trace depends; the others have fixed values."""
        return dataclasses.replace(
            self, seed=0, sampling="", absent=(), odd_clients=(), factor=1.0, shift=0.0
        )

    def expected_counts(self) -> np.ndarray:
        """Returns the expected number of each domain's examples in a round, float64 [p]."""
        rng = np.random.default_rng([self.group, 1])
        by_name = dict(zip(sorted(self.domains), rng.uniform(1, 8, len(self.domains))))
        return np.array([by_name[name] for name in self.domains])

    @property
    def the_task(self) -> Task:
        return ENSEMBLE if self.task == "ensemble" else TASKS[self.task]

    def clients(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns clients with unequal losses by id; a client has one or two domains."""
        rng = np.random.default_rng([self.seed, 2])
        names = sorted(self.domains)
        clients = {}
        for k in range(_CLIENTS):
            size = 1 if k < 2 else int(rng.integers(1, _MAX_EXAMPLES + 1))
            x, y = self.the_task.draw(rng, size)
            if self.the_task.has_real_inputs:
                x *= np.float32(0.4 + 0.3 * k)
            drawn = rng.choice([k, k + 1], size) % len(names)
            ids = np.array([self.domains.index(names[d]) for d in drawn], np.int32)
            clients[f"c{k}"] = {"x": x, "y": y, "domain_id": ids}
        return clients

    def cohorts(self) -> list[list[dict[str, np.ndarray]]]:
        """Returns each round's cohort."""
        clients = ClientsInMemory(self.clients())
        draw = COHORT_SAMPLINGS[self.sampling](
            clients, len(self.domains), _CLIENTS_PER_ROUND, self.seed
        )
        first, *others = [
            [clients.read(client) for client in draw(t)] for t in range(1, ROUNDS + 1)
        ]
        first = [_without(client, self.absent) for client in first]
        empty_client = _without(clients["c0"], range(len(self.domains)))
        if "empty" in self.odd_clients:
            first.insert(1, empty_client)
        if "not finite" in self.odd_clients:
            spoiled = {**clients["c9"], "x": clients["c9"]["x"] * np.float32("nan")}
            first.append(spoiled)
        # Secure and private sums need at least one client.
        return [cohort or [empty_client] for cohort in (first, *others)]

    def aggregation(self) -> Any:
        name = self.sums.removeprefix("tff/")
        if name != self.sums:
            aggregator: Any = UPDATE_AGGREGATORS[name].kind
            options = _SECURE if name == "secure" else Options()
            return named(aggregator(), LimitedOptions(), options, float(_CLIENTS_PER_ROUND))
        if name in ("plain", "secure"):
            return PlainSum() if name == "plain" else SecureSum(_SECURE)
        inner = SecureSum(_SECURE) if name == "distributed" else PlainSum()
        least = int(name == "distributed")
        clients = float(_CLIENTS_PER_ROUND)
        return private_sum(name, inner, 0.02, clients, min_clients=least, clip_norm=0.5)


def _by_flag(options: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings whose names are flags of the options."""
    names = {flag.name for flag in option_flags(options)}
    return {name: value for name, value in settings.items() if name in names}


def _without(client: Mapping[str, np.ndarray], domains: Sequence[int]) -> dict[str, np.ndarray]:
    stays = ~np.isin(client["domain_id"], domains)
    return {name: column[stays] for name, column in client.items()}


def draw(seed: int) -> Combination:
    """Returns a random combination for a seed; neighbouring seeds share a group and its traces."""
    group = seed // SEEDS_PER_GROUP
    rng = np.random.default_rng([group, 0])
    algorithm = str(rng.choice(_ALGORITHMS))
    options = ALGORITHMS[algorithm].options
    is_ensemble = issubclass(options, EnsembleOptions)
    weights = np.array(list(_SUMS.values()))
    sums = str(rng.choice(list(_SUMS), p=weights / weights.sum()))
    runtime = "vectorised" if rng.random() < 0.2 else "streamed"
    is_single = bool(rng.random() < 0.1)
    combination = Combination(
        seed=seed,
        group=group,
        algorithm=algorithm,
        settings={},
        task="ensemble" if is_ensemble else str(rng.choice(list(TASKS))),
        sums=sums,
        runtime="tff" if sums.startswith("tff/") else runtime,
        domains=("0",) if is_single else ("0", "1", "2"),
    )
    while True:
        drawn = dataclasses.replace(
            combination, settings=_settings(rng, combination.spec, is_single)
        )
        try:
            drawn.build()
        except UserError:
            continue
        return _with_clients(drawn)


def _with_clients(combination: Combination) -> Combination:
    """Returns the combination with random clients; no trace depends on the choice of clients."""
    rng = np.random.default_rng([combination.seed, 3])
    odd_clients = ("empty", "not finite")[: 1 + combination.the_task.has_real_inputs]
    is_whole = len(combination.domains) == 1 or rng.random() < 0.6
    return dataclasses.replace(
        combination,
        sampling="turns" if combination.sums == "tree" else str(rng.choice(list(COHORT_SAMPLINGS))),
        absent=() if is_whole else (int(rng.integers(len(combination.domains))),),
        odd_clients=tuple(odd for odd in odd_clients if rng.random() < 0.3),
    )


def _settings(rng: np.random.Generator, spec: AlgorithmSpec, is_single: bool) -> dict[str, Any]:
    """Returns random settings and builder arguments, which are valid together."""
    names = {*_by_flag(spec.options, _POOL), *builder_arguments(spec.build, _POOL)}
    likelihood = rng.choice([0.2, 0.5])
    settings: dict[str, Any] = {}
    for name, values in _POOL.items():
        if name not in names or (name not in _REQUIRED and rng.random() > likelihood):
            continue
        value = values[rng.integers(len(values))]
        if is_single and name in _PER_DOMAIN:
            continue
        more = {**settings, name: "0" if is_single and name == "target_domain" else value}
        try:
            make_options(spec.options, **_by_flag(spec.options, more))
        except UserError:
            continue
        settings = more
    return settings
