"""The command `reproduce`: makes the trials of a paper's table, next to the paper's numbers."""

from __future__ import annotations

import dataclasses
import datetime
import os
from pathlib import Path
from typing import Annotated, Any, Optional

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.program.commands.command_line import (
    DataOptions,
    RunArguments,
    RunCommand,
    Session,
    session,
)
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import (
    ArmsAsPredictors,
    Experiment,
    prepare,
    prepare_predictors,
    store_path,
)
from tff_agnostic.program.experiments.page import page as experiment_page
from tff_agnostic.program.experiments.page import settings_that_differ
from tff_agnostic.program.options.flags import REPEATED
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.spec import RunSettings, check_used_by_any, resolve
from tff_agnostic.program.studies.compare import COMPARE_FILE
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.methods import overrides
from tff_agnostic.program.studies.rows import train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.trainer import RunTrainer

# Flags that the experiment and its methods set.
_NOT_FLAGS = ("algorithm", "target_domain", "trust")
# Number of evaluations per run, which is enough to plot a curve.
_EVALUATIONS = 12


@dataclasses.dataclass(frozen=True)
class ReproduceOptions(DataOptions):
    """Flags of `reproduce` in addition to the settings of runs.

    Attributes:
        experiment: Experiment to reproduce. Table 6 of Ro et al. 2021: emnist (EMNIST-62, TFF's
            data), mnist_by_writer (digits only, from mnist_by_writer.npz). Table 2 of Ro et al.
            2021: stackoverflow (TFF's Stack Overflow, or Stack Exchange dumps). Table 3 of Ro et
            al. 2021: spanish_keyboard (folders of Spanish texts by country). Table I of Laguel et
            al. 2021, which is for EMNIST-62: delta_fl (digits from mnist_by_writer.npz, half of the
            writers tested). Table 1 of Mohri et al. 2019: adult (files of UCI Adult in --data_dir).
            Table 2: fashion_mnist (IDX files of Fashion-MNIST in --data_dir). Table 3:
            two_domain_lm (folders documents/ and conversations/ with texts). Figure 5 of Hamer et
            al. 2020, which has no numbers: fedboost_shakespeare (mixes unigram models of the
            speakers of tiny Shakespeare). Without a paper: fedboost_stackexchange (FedBoost and
            AFLBoost mix a next-word model per Stack Exchange site).
        override: A flag for one row only, as ROW:FLAG=VALUE; may be given several times.
        trials: Number of trials per method; their seeds are --seed, --seed + 1, and so on. [as in
            the paper]
        scale: Factor for the experiment's number of rounds; 0.1 makes a tenth of the rounds.
        output_dir: Folder of all runs. [runs/reproduce-EXPERIMENT-NUMBER, a new one]
        resume: Resume in --output_dir: keep complete trials, and make the others.
    """

    experiment: Annotated[str, OneOf(EXPERIMENTS)] = dataclasses.field(kw_only=True)
    override: Annotated[tuple[str, ...], REPEATED] = ()
    trials: Optional[Annotated[int, Within(least=1, most=MAX_TRIALS)]] = None
    scale: Annotated[float, Within(above=0)] = 1.0
    output_dir: Optional[Path] = None
    resume: bool = False


def reproduce(given: RunArguments) -> None:
    """Runs all trials; prints the tables and writes the page."""
    experiment = EXPERIMENTS[given.args.experiment]
    with session(given, f"reproduce-{given.args.experiment}") as at:
        _reproduce(given, experiment, at)


def _reproduce(given: RunArguments, experiment: Experiment, at: Session) -> None:
    args, folder = given.args, at.path
    trials = args.trials or experiment.trials
    store = store_path(experiment, args.data_dir, args.data, folder)
    specs = trial_specs(given, experiment, trials, store, folder)
    runtime_name = next(iter(specs.values()))[0].config.runtime
    identity = {"study": "reproduce", "experiment": args.experiment}
    labels = {arm: row.label for arm, row in experiment.arms.items()}
    with (
        at.running(runtime_name) as (runtime, stop),
        RunSet(folder, identity, trainer := RunTrainer(runtime, stop), args.resume, stop) as runs,
    ):
        arms = ", ".join(experiment.arms)
        print(f"{args.experiment}, {counted(trials, 'trial')} of {arms}: {folder}")
        prepare(experiment, args.data_dir, store)
        prepare_predictors(experiment, next(iter(specs.values())), runtime, folder)
        # Complete the predictors before a method mixes them: another process may train some.
        predictors = experiment.base_predictors
        first = predictors.arms if isinstance(predictors, ArmsAsPredictors) else ()
        for part in [{arm: specs[arm] for arm in first}, specs] if first else [specs]:
            comparison = train_rows(
                runs, trainer, part, {}, labels, "reproduce", given.show_progress
            )
    if missing := [arm for arm in specs if arm not in comparison.trials]:
        raise UserError(f"{', '.join(missing)}: expected a result of every trial, found none")
    write_json(folder / COMPARE_FILE, comparison.to_json())
    facts = [
        f"{counted(trials, 'trial')}, each with its own seed; {datetime.date.today().isoformat()}; "
        f"training and evaluation took {runs.seconds() / 60:.0f} minutes on "
        f"{counted(len(os.sched_getaffinity(0)), 'processor core')}.",
        *([f"Shortened: {args.scale:g} times the task's rounds."] if args.scale != 1 else []),
        *settings_that_differ({arm: runs[0] for arm, runs in specs.items()}, experiment),
    ]
    page = experiment_page(experiment, comparison, given.typed, facts)
    print(f"\n{to_terminal(page)}")
    print(f"\nreport: {write_page(folder, page)}")


def trial_specs(
    given: RunArguments, experiment: Experiment, trials: int, store: Optional[Path], folder: Path
) -> dict[str, list[RunSettings]]:
    """Returns the settings of each method's runs.

    Args:
        folder: Folder of the trials and of the predictors that methods mix.
    """
    settings, further = given.settings, overrides(given, tuple(experiment.arms))
    read = None if experiment.raw_data is not None else given.args.data_dir
    options = {**experiment.task_options, **given.task_options(experiment.task)}
    specs = {}
    for arm, row in experiment.arms.items():
        full = resolve(experiment.task, dict(row.settings), experiment.task_options).config.rounds
        rounds = max(1, round(full * given.args.scale))
        shared = {"rounds": rounds, "evaluate_every": max(1, rounds // _EVALUATIONS), **settings}
        chosen = {k: v for k, v in row.settings.items() if k not in settings}
        seed = shared.get("seed", 0)
        specs[arm] = [
            resolve(
                experiment.task,
                {**chosen, **further[arm], "seed": seed + k},
                options,
                read,
                store,
                shared={**shared, **_mixed(experiment, folder, k)},
            )
            for k in range(trials)
        ]
    check_used_by_any([runs[0] for runs in specs.values()], settings)
    return specs


def _mixed(experiment: Experiment, folder: Path, trial: int) -> dict[str, Any]:
    if experiment.base_predictors is None:
        return {}
    return {"base_predictors": experiment.base_predictors.paths(folder, trial)}


REPRODUCE = RunCommand(
    "reproduce", ReproduceOptions, reproduce, lambda nothing: None, without=_NOT_FLAGS
)
