"""Makes a run of what a fleet has trained: the checkpoint of a server that was given an export.

Example: ./run import_state --plan=export --server_state=after/server_state.ckpt --output_dir=back
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Export, Limits, open_export
from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.folders import check_free, new_folder
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_data_flags,
    define_run_flags,
    define_task_option_flags,
    given_settings,
    given_task_options,
)
from tff_agnostic.run.export import OPTIONS
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.import_state import (
    ROUND_NUM,
    ImportedRun,
    check_made_of,
    read_server_state,
    run_of_export,
    state_of,
)
from tff_agnostic.run.process import run_app
from tff_agnostic.settings import path_flag

# What a plan does not depend on, and a run that goes on may want.
_SETTINGS = (
    "rounds",
    "runtime",
    "cohort_sampling",
    "evaluate_every",
    "evaluation_clients",
    "checkpoint_every",
    "keep_checkpoints",
)


def define_flags() -> None:
    """Defines the flags of this binary."""
    flags.DEFINE_string("plan", None, "Folder of the export that the server was given.")
    flags.DEFINE_string(
        "server_state",
        None,
        "Checkpoint of the server's state: what run_plan writes, or a server stores after a round.",
    )
    flags.DEFINE_string("output_dir", None, "Folder of the run to make; new or empty.")
    flags.DEFINE_bool(
        "trust",
        False,
        "Read the checkpoint without a sandbox: only one that you trust, where the kernel has no "
        "Landlock or no seccomp.",
    )
    flags.DEFINE_float(
        "max_memory_gb",
        DEFAULT_LIMITS.max_memory_gb,
        "Memory of the process that reads the checkpoint, in 10^9 bytes.",
    )
    define_run_flags(_SETTINGS)
    define_data_flags()
    define_task_option_flags()


def main(argv: Sequence[str]) -> None:
    """Makes the run's folder, and says how to go on."""
    del argv
    plan, server_state = path_flag("plan"), path_flag("server_state")
    output_dir = path_flag("output_dir")
    for name, path, what in (
        ("plan", plan, "the folder of an export"),
        ("server_state", server_state, "the checkpoint of its server"),
        ("output_dir", output_dir, "the folder of the run to make"),
    ):
        if path is None:
            raise UserError(f"--{name}: expected {what}, found none")
    assert plan is not None and server_state is not None and output_dir is not None
    check_free(output_dir, "--output_dir")
    export = _opened(plan)
    manifest = read_json(plan / "manifest.json")
    limits = Limits(max_memory_gb=flags.FLAGS.max_memory_gb)
    try:
        limits.check()
    except PlanError as e:
        raise UserError(str(e)) from e
    tensors = read_server_state(export, server_state, limits, flags.FLAGS.trust)
    task_name = manifest["task"]
    options = given_task_options(task_name)
    if OPTIONS not in manifest:
        print(
            f"note: {plan} is of an earlier release and does not say the options of its task: "
            "those of the flags are taken, or the defaults"
        )
    completed = int(tensors[ROUND_NUM])
    spec = run_of_export(manifest, completed, given_settings(), options, data_dir(), data())
    if spec.config.rounds < completed:
        raise UserError(
            f"--rounds: expected at least {completed}, which {server_state} has already, found "
            f"{spec.config.rounds}"
        )
    run = ImportedRun(spec, spec.load_task())
    check_made_of(manifest, run.fingerprint)
    state = state_of(run.initial, tensors, str(server_state))
    with new_folder(output_dir, "--output_dir") as path:
        run.write(RunFolder(path), state)
    label = algorithm_label(spec.config.algorithm)
    print(f"{label} on {task_name} after {completed} rounds: {output_dir}")
    print(
        f"to go on in simulation: ./run train {shlex.quote(f'--output_dir={output_dir}')} "
        f"--resume --rounds={completed + 1}, or more"
    )


def _opened(plan: Path) -> Export:
    try:
        return open_export(plan)
    except PlanError as e:
        raise UserError(f"--plan: {e}") from e


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
