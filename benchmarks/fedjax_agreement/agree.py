"""Compares AgnosticFedAvg with its authors' implementation in FedJAX 0.0.17, round by round.

    .venv/bin/python benchmarks/fedjax_agreement/agree.py

The script exits with status 1 if a relative difference exceeds 1e-5. See README.md in this folder.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).resolve().parent
# Import the package from this checkout, even if it is installed.
sys.path.insert(0, str(_FOLDER.parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from problem import (  # noqa: E402
    Problem,
    Settings,
    Trajectory,
    load_trajectory,
    make_problem,
    save_problem,
)

from benchmarks.timing.environments import isolated, peer_python  # noqa: E402
from tff_agnostic.aggregations.aggregation import PlainSum  # noqa: E402
from tff_agnostic.algorithms import AgnosticFedAvgOptions  # noqa: E402
from tff_agnostic.algorithms import Problem as Learned  # noqa: E402
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg  # noqa: E402
from tff_agnostic.models import logistic_regression  # noqa: E402
from tff_agnostic.models.model import ModelWeights  # noqa: E402
from tff_agnostic.program.options.flags import build  # noqa: E402
from tff_agnostic.runtimes.tff import TffRuntime  # noqa: E402

_TOLERANCE = 1e-5

_SETTINGS = (
    Settings(
        name="FedJAX's own batches, one epoch, server SGD, window 3",
        client_sizes=(5, 10, 15, 20, 40, 5, 10, 30, 15, 60, 5, 25),
        batch_size=5,
        epochs=1,
        client_learning_rate=0.5,
        server_learning_rate=0.8,
        server_momentum=0.0,
        domain_learning_rate=0.05,
        window_size=3,
        initial_weights=(0.1, 0.2, 0.3, 0.4),
        initial_counts=(40.0, 20.0, 30.0, 10.0),
        own_batches=True,
    ),
    Settings(
        name="ragged batches, three epochs, server momentum, window 4",
        client_sizes=(3, 11, 14, 1, 37, 6, 9, 30, 17, 61, 5, 23),
        batch_size=7,
        epochs=3,
        client_learning_rate=0.3,
        server_learning_rate=0.3,
        server_momentum=0.5,
        domain_learning_rate=0.05,
        window_size=4,
        initial_weights=(0.4, 0.3, 0.2, 0.1),
        initial_counts=(40.0, 20.0, 30.0, 10.0),
        own_batches=False,
    ),
)


def run_theirs(problem: Problem) -> Trajectory:
    """Runs FedJAX in a separate environment."""
    with tempfile.TemporaryDirectory() as folder:
        problem_path, trajectory_path = Path(folder, "problem.npz"), Path(folder, "rounds.npz")
        save_problem(problem, problem_path)
        script = [str(_FOLDER / "fedjax_side.py"), str(problem_path), str(trajectory_path)]
        environment = {**isolated(), "JAX_PLATFORMS": "cpu"}
        subprocess.run([str(peer_python("fedjax")), *script], check=True, env=environment)
        return load_trajectory(trajectory_path)


def run_ours(runtime: TffRuntime, problem: Problem) -> Trajectory:
    """Runs this package's algorithm in TFF."""
    settings = problem.settings
    model = dataclasses.replace(
        logistic_regression(*problem.matrix.shape),
        initial_weights=ModelWeights([problem.matrix, problem.offsets], []),
    )
    momentum = settings.server_momentum or 0.0
    options = build(
        AgnosticFedAvgOptions,
        dict(
            client_learning_rate=settings.client_learning_rate,
            client_epochs=settings.epochs,
            client_batch_size=settings.batch_size,
            client_shuffle=False,
            server_optimizer="momentum" if momentum else "sgd",
            server_learning_rate=settings.server_learning_rate,
            server_momentum=momentum,
            lambda_learning_rate=settings.domain_learning_rate,
            window=settings.window_size,
            lambda_initial=settings.initial_weights,
            lambda_absent="zero",
        ),
    )
    num_domains = len(settings.initial_weights)
    algorithm = agnostic_fed_avg(
        Learned.numbered(model, num_domains),
        options,
        initial_counts=settings.initial_counts,
    )
    training = runtime.training(algorithm, PlainSum())
    state = training.initialize()
    rounds = []
    for cohort in problem.cohorts:
        state, _ = training.next(state, [problem.clients[k] for k in cohort])
        rounds.append(_state_arrays(state.algorithm))
    return Trajectory.stacked(rounds)


def _state_arrays(state: Any) -> tuple[np.ndarray, ...]:
    return (*state.weights.trainable, state.memory.lambda_, state.memory.window)


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns max |ours - theirs| / max |theirs|; NaN if a value is not finite."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


def compare(problem: Problem, ours: Trajectory, theirs: Trajectory) -> float:
    """Prints each round's relative differences, and returns the largest one."""
    print(f"\n{problem.settings.name}")
    print(f"{'round':>5} {'absent':>6} {'weights':>9} {'lambda':>9} {'window':>9}")
    differences = []
    for t in range(len(problem.cohorts)):
        weights, lambda_, window = (
            max(
                relative_difference(getattr(ours, name)[t], getattr(theirs, name)[t])
                for name in names
            )
            for names in (("matrix", "offsets"), ("lambda_",), ("window",))
        )
        absent = int(np.sum(theirs.window[t, -1] == 0))
        print(f"{t + 1:>5} {absent:>6} {weights:>9.1e} {lambda_:>9.1e} {window:>9.1e}")
        differences.append((weights, lambda_, window))
    largest = np.max(differences, axis=0)
    print("{:>12} {:>9.1e} {:>9.1e} {:>9.1e}".format("largest", *largest))
    return float(np.max(largest))


def main() -> int:
    """Compares both implementations on all problems, and returns the exit status."""
    problems = [make_problem(settings, seed=i) for i, settings in enumerate(_SETTINGS)]
    theirs = [run_theirs(problem) for problem in problems]
    with TffRuntime() as runtime:
        ours = [run_ours(runtime, problem) for problem in problems]
    largest = max(map(compare, problems, ours, theirs))
    # This form of the comparison treats NaN as a failure.
    agrees = largest <= _TOLERANCE
    print(f"\nlargest relative difference {largest:.1e}: " + ("agrees" if agrees else "DIFFERS"))
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
