"""Two rounds of random combinations of choices satisfy the relations in `INVARIANTS`.

A test's parameter is the seed of its combination. RANDOM_COMBINATIONS=60:200 in the environment
selects the seeds 60 to 199.
"""

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.random_combinations.draws import SEEDS_PER_GROUP, Combination, draw
from tests.support.comparing import assert_identical, to_numpy
from tests.support.runtimes import running_runtimes
from tff_agnostic.algorithms import Trait
from tff_agnostic.algorithms.tail_thresholds import (
    RefinedThreshold,
    SmoothBoundary,
    SurveyThreshold,
)
from tff_agnostic.base.report_fields import ReportField, Role, paired
from tff_agnostic.computations import Algorithm, as_tensors
from tff_agnostic.computations.server import Adagrad, Adam, Yogi
from tff_agnostic.domain_weights.ascent import Cvar, Fixed, LambdaPlayer
from tff_agnostic.domain_weights.sets import BoxSet
from tff_agnostic.program.options.flags import option_values
from tff_agnostic.saving.checkpoints import CheckpointFolder

_NUM_DRAWS = 60
# Two groups of settings, each with two samples of clients.
_QUICK = (44, 45, 56, 57)
# Groups that are drawn nightly only, as another group covers each of them: it has the same
# algorithm, and the same sums or more complex ones.
_NIGHTLY_GROUPS = (2, 4, 9)
_FACTOR = 4.0
# Minimum ratio of losses that a histogram distinguishes after any shift.
_MIN_RATIO = 1.06
# Prefixes of columns with learning rates, or with losses that are not a domain's.
_LOSSES_AND_RATES = ("threshold", "center", "unit_loss", "client_learning", "server_learning")


class Run(NamedTuple):
    """The results of two rounds.

    Attributes:
        states: State before each round, and after the last round.
        columns: Reported columns of each round: field and value by name.
    """

    combination: Combination
    algorithm: Algorithm
    training: Any
    cohorts: Sequence[Any]
    states: Sequence[Any]
    columns: Sequence[Mapping[str, tuple[ReportField, np.ndarray]]]

    def models(self) -> dict[str, np.ndarray]:
        """Returns the trainable weights of every model after the last round."""
        return {
            f"{name}/{k}": np.asarray(weights)
            for name, model in self.algorithm.models(self.states[-1].algorithm).items()
            for k, weights in enumerate(model.trainable)
        }


class Bench:
    """Runs combinations, with cached trainings of one group.

    Args:
        runtime: Called with a runtime's name; returns the started runtime.
        folder: Folder for checkpoints.
    """

    def __init__(self, runtime: Callable[[str], Any], folder: Path) -> None:
        self.folder = folder
        self._runtime = runtime
        self._group = -1
        self._trainings: dict[str, Any] = {}

    def run(
        self,
        combination: Combination,
        cohorts: Optional[Sequence[Any]] = None,
        state: Optional[Any] = None,
    ) -> Run:
        """Runs cohorts from a state; by default the combination's cohorts and initial state."""
        algorithm = combination.build()
        key = repr(combination.traced())
        if combination.group != self._group:
            self._group, self._trainings = combination.group, {}
        if key not in self._trainings:
            runtime = self._runtime(combination.runtime)
            self._trainings[key] = runtime.training(algorithm, combination.aggregation())
        training = self._trainings[key]
        if state is None:
            first = to_numpy(as_tensors(algorithm.initialize()))
            state = training.initialize()._replace(algorithm=first)
        states, columns = [state], []
        cohorts = combination.cohorts() if cohorts is None else cohorts
        for cohort in cohorts:
            state, report = training.next(states[-1], cohort)
            states.append(state)
            pairs = paired(training.quantities, report)
            columns.append({field.name: (field, np.asarray(value)) for field, value in pairs})
        return Run(combination, algorithm, training, cohorts, states, columns)


@dataclasses.dataclass(frozen=True)
class Invariant:
    """A relation between a run and a second run.

    Attributes:
        holds: Called with a run; returns whether the relation should hold for it.
        check: Called with a bench, a run and the tolerance; makes the second run and compares both.
        tolerance: Maximum difference of a value, relative to 1 plus its size; 0 for equal bits.
        scope: Description of the combinations for which the relation holds.
        reason: Reason for the tolerance.
        weight: Relative frequency among relations that need a new trace; 0 to check it always.
    """

    holds: Callable[[Run], bool]
    check: Callable[[Bench, Run, float], None]
    tolerance: float
    scope: str
    reason: str
    weight: float = 0.0


def _assert_close(name: str, actual: Any, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance, err_msg=f"{name} differs"
    )


def _assert_same_models(actual: Run, expected: Run, tolerance: float) -> None:
    models, others = actual.models(), expected.models()
    assert models.keys() == others.keys()
    for name in models:
        _assert_close(name, models[name], others[name], tolerance)


def _assert_same(
    actual: Run,
    expected: Run,
    tolerance: float,
    change: Callable[[ReportField, np.ndarray, Any], Any] = lambda field, value, columns: value,
) -> None:
    """Compares models and columns; `change` maps an expected column, or returns None to skip it."""
    _assert_same_models(actual, expected, tolerance)
    for t, (result, wanted) in enumerate(zip(actual.columns, expected.columns)):
        for name in result.keys() & wanted.keys():
            value = change(*wanted[name], wanted)
            if value is not None:
                _assert_close(f"round {t}: {name}", result[name][1], value, tolerance)


def _check_client_order(bench: Bench, run: Run, tolerance: float) -> None:
    reordered = [cohort[::-1] for cohort in run.cohorts]
    _assert_same(bench.run(run.combination, reordered), run, tolerance)


def _check_twice(bench: Bench, run: Run, tolerance: float) -> None:
    # Double only the last round, as the window would count both copies in later rounds.
    cohort, once = run.cohorts[-1], run._replace(columns=run.columns[-1:])
    twice = bench.run(run.combination, [[*cohort, *cohort]], run.states[-2])

    def means(field: ReportField, value: np.ndarray, _: Any) -> Any:
        return None if field.role is Role.NONE else value

    _assert_same(twice, once, tolerance, means)


def _check_resumed(bench: Bench, run: Run, tolerance: float) -> None:
    del tolerance
    state = run.states[1]
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        checkpoints = CheckpointFolder(Path(folder) / "checkpoints", keep=1)
        checkpoints.save(1, state, run.algorithm.models(state.algorithm))
        restored = checkpoints.load_latest().restore(run.training.initialize(), "here")
    resumed = bench.run(run.combination, run.cohorts[1:], restored)
    assert_identical(resumed.states[-1], run.states[-1])


def _check_shift(bench: Bench, run: Run, tolerance: float) -> None:
    combination = run.combination
    # Histograms and secure sums need losses of at least 0.
    is_binned = not isinstance(
        getattr(combination.options, "threshold", RefinedThreshold()), RefinedThreshold
    )
    shift = 2.0 if combination.sums == "secure" or is_binned else -3.0
    settings = dict(combination.settings)
    if "lambda_baselines" in settings:
        settings["lambda_baselines"] = tuple(b + shift for b in settings["lambda_baselines"])
    shifted = dataclasses.replace(combination, settings=settings, shift=shift)

    def moved(field: ReportField, value: np.ndarray, columns: Any) -> Any:
        if field.name.startswith(_LOSSES_AND_RATES):
            return None
        is_loss = field.role is Role.DOMAIN_LOSS
        return np.where(_measured(columns) > 0, value + shift, value) if is_loss else value

    _assert_same(bench.run(shifted), run, tolerance, moved)


def _measured(columns: Mapping[str, tuple[ReportField, np.ndarray]]) -> np.ndarray:
    """Returns each domain's number of examples with a measured loss."""
    names = ("kept_out/num_examples", "train/num_examples")
    return next(columns[name][1] for name in names if name in columns)


def _check_factor(bench: Bench, run: Run, tolerance: float) -> None:
    combination = run.combination
    values, settings = option_values(combination.options), dict(combination.settings)
    divided = ["client_learning_rate", "lambda_learning_rate", "tilt"]
    if combination.algorithm == "stochastic_afl":
        divided.append("server_learning_rate")
    for name in divided:
        if name in values:
            settings[name] = values[name] / _FACTOR
    if "mu" in settings:
        settings["mu"] *= _FACTOR
    if isinstance(boundary := settings.get("boundary"), SmoothBoundary):
        settings["boundary"] = SmoothBoundary(_FACTOR * boundary.width)
    if slope := settings.get("slope"):
        settings["slope"] = lambda lambda_, mixture: _FACTOR * slope(lambda_, mixture)
    if "lambda_baselines" in settings:
        settings["lambda_baselines"] = tuple(_FACTOR * b for b in settings["lambda_baselines"])
    scaled = dataclasses.replace(combination, settings=settings, factor=_FACTOR)

    def multiplied(field: ReportField, value: np.ndarray, _: Any) -> Any:
        if field.name.startswith(_LOSSES_AND_RATES):
            return None
        return _FACTOR * value if field.role is Role.DOMAIN_LOSS else value

    _assert_same(bench.run(scaled), run, tolerance, multiplied)


def _check_domain_order(bench: Bench, run: Run, tolerance: float) -> None:
    combination = run.combination
    order, to_new = [2, 0, 1], np.array([1, 2, 0], np.int32)

    def in_order(value: Any) -> Any:
        if isinstance(value, BoxSet):
            return BoxSet(in_order(value.lower), in_order(value.upper))
        if isinstance(value, tuple) and len(value) == 3:
            return tuple(value[k] for k in order)
        return value

    settings = {
        name: value if name == "theta" else in_order(value)
        for name, value in combination.settings.items()
    }
    reordered = dataclasses.replace(
        combination, settings=settings, domains=tuple(combination.domains[k] for k in order)
    )
    # Stratified sampling would now draw different clients, so keep the run's cohorts.
    cohorts = [
        [{**client, "domain_id": to_new[client["domain_id"]]} for client in cohort]
        for cohort in run.cohorts
    ]

    def permuted(field: ReportField, value: np.ndarray, _: Any) -> Any:
        return value[order] if field.per_domain else value

    _assert_same(bench.run(reordered, cohorts), run, tolerance, permuted)


def _elsewhere(**changes: Any) -> Callable[[Bench, Run, float], None]:
    """Returns a check that a run with the changed choices has the same results."""

    def check(bench: Bench, run: Run, tolerance: float) -> None:
        other = bench.run(dataclasses.replace(run.combination, **changes))

        def on_both(field: ReportField, value: np.ndarray, _: Any) -> Any:
            return None if "clip" in field.name else value

        _assert_same(other, run, tolerance, on_both)

    return check


def _check_other_mode(bench: Bench, run: Run, tolerance: float) -> None:
    other = "vectorised" if run.combination.runtime == "streamed" else "streamed"
    _elsewhere(runtime=other)(bench, run, tolerance)


def _check_fed_avg(bench: Bench, run: Run, tolerance: float) -> None:
    settings = run.combination.settings
    names = option_values(_FED_AVG.options)
    kept = {name: value for name, value in settings.items() if name in names}
    other = dataclasses.replace(run.combination, algorithm="fed_avg", settings=kept)
    models, expected = run.models(), bench.run(other).models()
    for k, (name, weights) in enumerate(expected.items()):
        _assert_close(name, list(models.values())[k], weights, tolerance)


def _check_fixed_weights(bench: Bench, run: Run, tolerance: float) -> None:
    settings = {
        name: value
        for name, value in run.combination.settings.items()
        if name != "lambda_baselines"
    }
    settings["lambda_update"] = Fixed()
    expected = run.combination.expected_counts()
    settings["lambda_initial"] = tuple((expected / expected.sum()).tolist())
    fixed = dataclasses.replace(run.combination, settings=settings)
    _assert_same_models(bench.run(fixed), run, tolerance)


_FED_AVG = Combination(0, 0, "fed_avg", {})


def _is_plain(run: Run) -> bool:
    return run.combination.sums == "plain"


def _is_mean(run: Run) -> bool:
    """Whether sums have neither noise nor clipped values."""
    clipped = [
        value
        for columns in run.columns
        for name, (_, value) in columns.items()
        if "clipped/" in name
    ]
    return run.combination.sums in ("plain", "secure") and not any(clipped)


def _reads_no_order(run: Run) -> bool:
    """Whether no random choice depends on a hash of a client's examples and domain ids."""
    values = option_values(run.combination.options)
    return not (
        values.get("client_shuffle", False)
        or values.get("measured_share", 0.0)
        or values.get("sample_size")
        or values.get("cohort_share", 1.0) < 1.0
    )


def _draws_no_domain(run: Run) -> bool:
    return not {"weights_gradient", "lambda_gradient"} & set(run.combination.settings)


def _separates_losses(run: Run) -> bool:
    """Whether Delta-FL orders clients equally by their losses and by shifted losses."""
    options = run.combination.options
    if options.theta == (1.0,):
        return True
    if not isinstance(options.threshold, SurveyThreshold):
        return False
    if isinstance(options.boundary, SmoothBoundary) or options.measured_share:
        return False
    for state, cohort in zip(run.states, run.cohorts):
        for level in state.algorithm.levels:
            losses = np.sort([_mean_loss(run, level.weights, client) for client in cohort])
            losses = losses[np.isfinite(losses)]
            for shift in (0.0, 2.0):
                if np.any(losses[1:] + shift < _MIN_RATIO * (losses[:-1] + shift)):
                    return False
    return True


def _mean_loss(run: Run, weights: Any, client: Mapping[str, np.ndarray]) -> float:
    if not len(client["domain_id"]):
        return np.nan
    seed = tf.zeros([2], tf.int32)
    losses, _ = run.algorithm.problem.model.example_losses(weights, client, False, seed)
    return float(np.mean(losses))


def _ignores_shift(run: Run) -> bool:
    combination, options = run.combination, run.combination.options
    if not (_is_mean(run) and combination.the_task.can_be_scaled):
        return False
    if combination.algorithm == "delta_fl":
        return _separates_losses(run)
    if combination.algorithm == "q_ffl":
        return options.q == 0
    if not (hasattr(options, "lambda_") and options.lambda_.moves):
        return True
    if combination.algorithm == "stochastic_afl" and (
        options.loss_estimate != "ratio" or "lambda_gradient" in combination.settings
    ):
        return False
    # The shift does not change an absent domain's loss of 0.
    is_everywhere = all(np.all(_measured(columns) > 0) for columns in run.columns)
    return is_everywhere or options.lambda_.absent == "freeze"


def _ignores_factor(run: Run) -> bool:
    combination, options = run.combination, run.combination.options
    if not (_is_plain(run) and combination.the_task.can_be_scaled):
        return False
    if combination.algorithm == "delta_fl":
        return _separates_losses(run)
    if combination.algorithm != "stochastic_afl":
        return True
    return not isinstance(options.server.optimizer, (Adagrad, Adam, Yogi))


def _is_fed_avg(run: Run) -> bool:
    """Whether the algorithm equals FedAvg for these settings, or for a single domain."""
    combination, options = run.combination, run.combination.options
    if (
        not _is_mean(run)
        or getattr(options, "measured_share", 0.0)
        or getattr(options, "client_weighting", "examples") != "examples"
    ):
        return False
    if len(combination.domains) == 1 and Trait.ONE_DOMAIN_IS_FED_AVG in combination.spec.traits:
        return combination.algorithm != "fed_avg"
    identity = {"q": 0.0, "tilt": 0.0, "mu": 0.0, "cohort_share": 1.0, "theta": (1.0,)}
    return any(getattr(options, name, None) == value for name, value in identity.items())


def _is_fixed(run: Run) -> bool:
    player = getattr(run.combination.options, "lambda_", LambdaPlayer())
    return isinstance(player.update, Cvar) and player.update.level == 1.0 and player.initial is None


def _runs_in_process(run: Run) -> bool:
    return run.combination.runtime != "tff"


INVARIANTS: Mapping[str, Invariant] = {
    "the clients' order changes nothing": Invariant(
        # Noise that clients add depends on their order.
        lambda run: run.combination.sums != "distributed",
        _check_client_order,
        tolerance=1e-4,
        scope="all but noise that clients add",
        reason="float32 sums in another order",
    ),
    "every client twice is the same mean": Invariant(
        lambda run: _is_mean(run) and Trait.COHORT_TWICE_IS_ONCE in run.combination.spec.traits,
        _check_twice,
        tolerance=1e-4,
        scope="algorithms that claim it, without noise",
        reason="float32 sums of twice the size",
    ),
    "a resumed run is the uninterrupted one": Invariant(
        lambda run: True,
        _check_resumed,
        tolerance=0.0,
        scope="all",
        reason="the same functions of the same numbers",
    ),
    "a constant added to all losses changes nothing": Invariant(
        _ignores_shift,
        _check_shift,
        tolerance=1e-3,
        scope="without noise: FedAvg and its variants, TERM, q = 0, Delta-FL's surveys where "
        "losses are apart; lambda in every set by every ascent where no absent domain "
        "counts as 0, and in Stochastic-AFL where losses are means",
        reason="losses of float32 lose digits",
    ),
    "losses times 4 with rates over 4 are the same": Invariant(
        _ignores_factor,
        _check_factor,
        tolerance=1e-3,
        scope="plain sums: all but ensembles, and Stochastic-AFL with an adaptive server optimizer",
        reason="learning rates are rounded",
        weight=1.0,
    ),
    "the domains' order changes nothing else": Invariant(
        lambda run: (
            _is_mean(run)
            and len(run.combination.domains) > 1
            and _reads_no_order(run)
            and _draws_no_domain(run)
        ),
        _check_domain_order,
        tolerance=1e-4,
        scope="no noise, and nothing drawn by domain or by a hash of examples",
        reason="float32 sums in another order",
        weight=1.5,
    ),
    "streamed clients equal vectorised ones": Invariant(
        _runs_in_process,
        _check_other_mode,
        tolerance=1e-4,
        scope="all",
        reason="other kernels",
        weight=0.5,
    ),
    "secure sums equal plain ones": Invariant(
        lambda run: run.combination.sums == "secure" and _is_mean(run),
        _elsewhere(sums="plain"),
        tolerance=1e-3,
        scope="all",
        reason="40 bits of each value within its bounds",
        weight=2.0,
    ),
    "the identity settings are FedAvg": Invariant(
        _is_fed_avg,
        _check_fed_avg,
        tolerance=1e-4,
        scope="one domain, q = 0, tilt = 0, mu = 0, conformity 1, share 1; without noise, holdout "
        "or equal weights of clients",
        reason="weights that cancel",
        weight=3.0,
    ),
    "CVaR of all examples keeps the training mixture": Invariant(
        _is_fixed,
        _check_fixed_weights,
        tolerance=1e-4,
        scope="conformity 1 from the training mixture",
        reason="float32 shares",
        weight=3.0,
    ),
    "the cohort runtime equals TFF's": Invariant(
        _runs_in_process,
        _elsewhere(runtime="tff"),
        tolerance=1e-4,
        scope="all",
        reason="another build of TensorFlow",
        weight=0.03,
    ),
    "the cohort runtime equals Ray's": Invariant(
        _runs_in_process,
        _elsewhere(runtime="ray"),
        tolerance=1e-4,
        scope="all",
        reason="sums of the workers' sums",
        weight=0.003,
    ),
}


def check_draw(bench: Bench, seed: int) -> list[str]:
    """Returns the names of the checked invariants of a seed's combination.

    Raises:
        AssertionError: Lists the combination and all violated invariants.
    """
    combination = draw(seed)
    failures: dict[str, Exception] = {}
    checked: list[str] = []
    try:
        run = bench.run(combination)
        _assert_sound(run)
        checked = _chosen(run)
    except Exception as e:
        failures["the run is sound"] = e
    for name in checked:
        row = INVARIANTS[name]
        try:
            row.check(bench, run, row.tolerance)
        except Exception as e:
            failures[name] = e
    if failures:
        lines = [f"{name}: {type(e).__name__}: {e}" for name, e in failures.items()]
        raise AssertionError("\n".join([f"draw {seed}: {combination}", *lines]))
    return checked


def _assert_sound(run: Run) -> None:
    for cohort, columns in zip(run.cohorts, run.columns):
        outcomes = [value for name, (_, value) in columns.items() if name.startswith("clients/")]
        assert run.combination.is_private or sum(outcomes) == len(cohort)
        assert not columns["skipped"][1]
    assert all(np.all(np.isfinite(weights)) for weights in run.models().values())


def _chosen(run: Run) -> list[str]:
    """Returns the invariants to check: all without a new trace, and one of the others."""
    held = {name: row.weight for name, row in INVARIANTS.items() if row.holds(run)}
    drawn = {name: weight for name, weight in held.items() if weight}
    rng = np.random.default_rng([run.combination.group, 2])
    chances = np.array(list(drawn.values())) / sum(drawn.values()) if drawn else None
    others = [str(rng.choice(list(drawn), p=chances))] if drawn else []
    return [name for name, weight in held.items() if not weight] + others


@pytest.fixture(scope="module")
def bench(request, tmp_path_factory):
    with running_runtimes(request) as get:
        yield Bench(get, tmp_path_factory.mktemp("checkpoints"))


def _seeds() -> list[Any]:
    if given := os.environ.get("RANDOM_COMBINATIONS"):
        return list(range(*map(int, given.split(":"))))
    return [pytest.param(seed, marks=_marks(seed)) for seed in range(_NUM_DRAWS)]


def _marks(seed: int) -> Any:
    if seed in _QUICK:
        return ()
    is_nightly = seed // SEEDS_PER_GROUP in _NIGHTLY_GROUPS
    return pytest.mark.nightly if is_nightly else pytest.mark.slow


@pytest.mark.parametrize("seed", _seeds())
def test_random_combination_keeps_invariants(bench, record_property, seed):
    record_property("invariants", check_draw(bench, seed))


@pytest.mark.slow
def test_modes_agree_on_unmeasured_non_finite_client(bench):
    # The client with NaN inputs has a single example, which it does not measure its loss on. Its
    # loss is therefore finite and below the threshold, but its trained weights are not finite.
    combination = Combination(
        seed=102,
        group=25,
        algorithm="delta_fl",
        settings={
            **{"client_learning_rate": 0.05, "client_shuffle": False, "server_learning_rate": 0.5},
            **{"measured_share": 0.4, "theta": (0.3,)},
        },
        sampling="poisson",
        absent=(1,),
        odd_clients=("not finite",),
    )
    run = bench.run(combination)
    _assert_sound(run)
    row = INVARIANTS["streamed clients equal vectorised ones"]
    row.check(bench, run, row.tolerance)
