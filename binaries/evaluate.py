"""Evaluates a checkpoint on the test clients of a task, per domain.

Example: ./run evaluate --checkpoint=runs/digits-agnostic_fed_avg-001
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.files import write_json
from tff_agnostic.program.cli import run_app
from tff_agnostic.program.config import check_effective
from tff_agnostic.program.evaluator import Evaluator
from tff_agnostic.program.flags import (
    data,
    data_dir,
    define_config_flags,
    define_runtime_flags,
    define_task_flags,
    given_config,
    given_task_options,
    runtime_options,
)
from tff_agnostic.program.run_folder import find_checkpoint
from tff_agnostic.program.run_spec import RunSpec, resolve
from tff_agnostic.runtimes.registry import RUNTIMES

_CONFIG_FLAGS = (
    "seed",
    "runtime",
    "aggregation",
    "secure_max_examples",
    "secure_max_loss",
    "secure_bits",
)


def define_flags() -> None:
    """Defines the flags of this binary."""
    flags.DEFINE_string(
        "checkpoint", None, "Folder of a run (its newest checkpoint), or one checkpoint file in it."
    )
    define_task_flags(default=None)
    define_config_flags(_CONFIG_FLAGS)
    define_runtime_flags()
    flags.DEFINE_string("output", None, "JSON file to write the evaluation to.")


def main(argv: Sequence[str]) -> None:
    """Evaluates, prints a table per domain, and writes JSON if asked to."""
    del argv
    if not flags.FLAGS.checkpoint:
        raise UserError(
            "--checkpoint: expected the folder of a run or a checkpoint file, found none"
        )
    folder, checkpoint = find_checkpoint(Path(flags.FLAGS.checkpoint))
    trained = folder.spec()
    spec = evaluated_spec(trained)
    task = spec.load_task()
    folder.check_fingerprint(task.fingerprint)
    config = spec.config
    options = runtime_options(config.runtime)
    # The weights alone: the task may have other domains than the one that was trained on.
    weights = checkpoint.restore_weights(task.model.initial_weights, flags.FLAGS.checkpoint)
    with RUNTIMES[config.runtime](options) as runtime:
        evaluate = runtime.evaluation(task.model, task.num_domains, config.build_aggregation())
        report = Evaluator(task, evaluate)(weights, on_all=True)
    print(f"{config.algorithm} after round {checkpoint.round_num}, on {spec.task}")
    print(report.table())
    if flags.FLAGS.output:
        description = {
            "checkpoint": str(flags.FLAGS.checkpoint),
            "round": checkpoint.round_num,
            "task": spec.task,
            "seed": config.seed,
        }
        write_json(Path(flags.FLAGS.output), {**description, **report.to_json()})


def evaluated_spec(trained: RunSpec) -> RunSpec:
    """Returns the run's spec with the task, options and settings that the flags give instead.

    Raises:
        UserError: If a flag is unknown, out of range or without effect.
    """
    name = flags.FLAGS.task or trained.task
    given = given_config()
    same_task = name == trained.task
    options = {**(trained.task_options if same_task else {}), **given_task_options(name)}
    folder, store = data_dir(), data()
    if same_task and folder is None and store is None:
        folder, store = (Path(p) if p else None for p in (trained.data_dir, trained.data))
    spec = resolve(name, {**dataclasses.asdict(trained.config), **given}, options, folder, store)
    check_effective(spec.config, given)
    return spec


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
