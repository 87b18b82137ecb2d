"""Times private rounds and rounds without noise, for each kind of noise and each generator.

    .venv/bin/python -m benchmarks.private_cost

Softmax regression, of MNIST's size by default, on clients with random examples. All sides take
turns in one process, on the same cohort. The results are ratios of seconds, and of processor
seconds, which depend less on other work on the machine.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from benchmarks.timing.turns import take_turns, training_turn
from benchmarks.timing.workloads import WORKLOADS, make_clients
from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.aggregations.noise_generators import NOISE_GENERATORS
from tff_agnostic.aggregations.private_sum import DistributedOptions
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations.algorithm import Problem
from tff_agnostic.models import logistic_regression
from tff_agnostic.program.options.flags import build
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.training.private_cohorts import noise_key

_PLAIN, _SECURE = "plain", "secure"
# Aggregation to which each kind adds noise, and which is its baseline.
_WITHOUT_NOISE = {
    **{name: name for name in (_PLAIN, _SECURE)},
    **{"central": _PLAIN, "tree": _PLAIN, "distributed": _SECURE},
}
KINDS = tuple(name for name, spec in PRIVACIES.items() if spec.build is not None)
_NOISE_MULTIPLIER = 0.5
_DOMAINS, _WARM = 2, 2


def sums_without_and_with_noise(
    clients: int,
    examples: int,
    kinds: Sequence[str] = KINDS,
    generators: Sequence[str] = tuple(NOISE_GENERATORS),
) -> dict[str, Aggregation]:
    """Returns sums without noise, and each kind of noise on top of plain or secure sums.

    Args:
        clients: Number of clients of a cohort.
        examples: Number of examples of each client.
        kinds: Names of kinds of noise.
        generators: Names of generators of clients' noise.
    """
    limits: dict[str, Any] = {"limit_examples": examples, "limit_loss": 4.0}
    sides: dict[str, Aggregation] = {
        _PLAIN: PlainSum(),
        _SECURE: SecureSum(build(SecureSumOptions, dict(**limits))),
    }
    for name in kinds:
        spec = PRIVACIES[name]
        assert spec.build is not None
        # A server's noise has a single generator.
        adds_at_clients = issubclass(spec.options, DistributedOptions)
        for chosen in [{"noise_generator": g} for g in generators] if adds_at_clients else [{}]:
            options = build(
                spec.options,
                dict(noise_multiplier=_NOISE_MULTIPLIER, noise_seed=1, **chosen, **limits),
            )
            facts = NoiseFacts(float(clients), noise_key(options), _NOISE_MULTIPLIER, clients)
            inner = sides[_WITHOUT_NOISE[name]]
            side = ", ".join([name, *chosen.values()])
            sides[side] = spec.build(name, inner, options, facts)
    return sides


def _costs(sides: Mapping[str, Aggregation], settings: argparse.Namespace) -> dict[str, np.ndarray]:
    """Returns seconds and processor seconds of each round of each side, [rounds, 2]."""
    model = logistic_regression(settings.features, settings.classes)
    counts = (settings.clients * settings.examples / _DOMAINS,) * _DOMAINS
    problem = Problem(model, tuple(map(str, range(_DOMAINS))), 0, counts)
    spec = ALGORITHMS[settings.algorithm]
    sizes = {name: getattr(settings, name) for name in ("clients", "examples", "classes")}
    workload = dataclasses.replace(
        WORKLOADS["logistic"], features=(settings.features,), domains=_DOMAINS, **sizes
    )
    cohort = make_clients(workload)
    with CohortRuntime() as runtime:
        algorithm = spec.build(
            problem, build(spec.options, dict(client_batch_size=settings.examples))
        )
        calls = {
            name: training_turn(runtime, algorithm, side, cohort) for name, side in sides.items()
        }
        return take_turns(calls, settings.rounds, _WARM)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints medians of rounds, and their ratios to rounds without noise."""
    parser = argparse.ArgumentParser(prog="private_cost", description=__doc__)
    parser.add_argument("--noise", nargs="+", choices=KINDS, default=KINDS)
    generators = list(NOISE_GENERATORS)
    parser.add_argument(
        "--noise_generator",
        nargs="+",
        choices=generators,
        default=generators,
        help="of clients' noise",
    )
    parser.add_argument("--algorithm", default="fed_avg", choices=list(ALGORITHMS))
    parser.add_argument("--features", type=int, default=784, help="of an example")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clients", type=int, default=1000, help="in each round")
    parser.add_argument("--examples", type=int, default=5, help="of each client")
    parser.add_argument("--rounds", type=int, default=7, help="timed, of each side")
    settings = parser.parse_args(argv)
    sides = sums_without_and_with_noise(
        settings.clients, settings.examples, settings.noise, settings.noise_generator
    )
    medians = {name: np.median(took, axis=0) for name, took in _costs(sides, settings).items()}
    rows = []
    for name, (seconds, used) in medians.items():
        baseline = _WITHOUT_NOISE[name.split(",")[0]]
        ratios = [f"{ratio:.2f}" for ratio in (seconds, used) / medians[baseline]]
        rows.append([name, f"{seconds:.3f}", baseline, *ratios])
    columns = ["sums", "seconds a round", "baseline", "seconds", "processor seconds"]
    print(tabulate(rows, columns, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
