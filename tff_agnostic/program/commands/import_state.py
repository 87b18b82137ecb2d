"""The command import_state: creates a run from the checkpoint of a fleet's server."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS
from plan_runner.play import read_server_state
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import check_free, make_folder, new_folder, read_json, write_text
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import RunState
from tff_agnostic.computations.round import Round
from tff_agnostic.deployment.graphs import SERVER, leaf_names
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import EVALUATION
from tff_agnostic.metrics.metrics_file import ROUND
from tff_agnostic.program.commands.command_line import DataOptions, RunArguments, RunCommand
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import build, option_values
from tff_agnostic.program.options.tasks import check_format, task_options
from tff_agnostic.program.options.user_algorithm import algorithm_label
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.export import (
    FINGERPRINT,
    OPTIONS,
    SETTINGS_FORMAT,
    SIMULATION_SETTINGS,
)
from tff_agnostic.program.runs.folder import RunFolder, trained_with
from tff_agnostic.program.runs.options import RunConfig, stored_values
from tff_agnostic.program.runs.spec import RunSettings, from_flags
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.task import DATA

ROUND_NUM = f"{SERVER}/round_num"
# Settings of a resumed run that do not affect the plan.
_SETTINGS = (
    "rounds",
    "runtime",
    "cohort_sampling",
    "evaluate_every",
    "evaluation_clients",
    "checkpoint_every",
    "keep_checkpoints",
)


@dataclasses.dataclass(frozen=True)
class ImportStateOptions(DataOptions):
    """Flags of `import_state` in addition to the settings of runs.

    Attributes:
        plan: Folder of the export that the server was given.
        server_state: Checkpoint of the server's state, as run_plan writes it or a server stores it
            after a round.
        output_dir: Folder of the run to create; new or empty.
        trust: Read the checkpoint without a sandbox if the kernel lacks Landlock or seccomp. Use it
            only for checkpoints that you trust.
        max_memory_gb: Maximum memory of the process that reads the checkpoint, in 10^9 bytes.
    """

    plan: Path = dataclasses.field(kw_only=True)
    server_state: Path = dataclasses.field(kw_only=True)
    output_dir: Path = dataclasses.field(kw_only=True)
    trust: bool = False
    max_memory_gb: float = DEFAULT_LIMITS.max_memory_gb


def import_state(given: RunArguments) -> None:
    """Creates the folder of a run for `train --resume`, `evaluate`, `save_model` and `export`."""
    args = given.args
    check_free(args.output_dir, "--output_dir")
    try:
        tensors = read_server_state(args.plan, args.server_state, args.max_memory_gb, args.trust)
    except PlanError as e:
        raise UserError(str(e)) from e
    manifest = read_json(args.plan / "manifest.json")
    check_format(args.plan / "manifest.json", manifest.get(SETTINGS_FORMAT))
    completed = int(tensors[ROUND_NUM])
    spec = _exported_run(manifest, completed, given)
    if spec.config.rounds < completed:
        raise UserError(
            f"--rounds: expected at least {completed}, the completed rounds of "
            f"{args.server_state}, found {spec.config.rounds}"
        )
    task = spec.load_task()
    algorithm, fingerprint = build_algorithm(spec, task), spec.fingerprint(task)
    for name, expected in manifest.get(FINGERPRINT, {}).items():
        # Skip the digest of examples: the fleet's nodes have their own examples.
        if name != DATA and fingerprint.get(name) != expected:
            raise UserError(
                f"--plan: expected the {name} of the exported run ({expected}), found "
                f"{fingerprint.get(name)}"
            )
    initial = Round(algorithm, spec.build_aggregation()).initialize()
    state = restored_state(initial, tensors, str(args.server_state))
    with new_folder(args.output_dir, "--output_dir") as path:
        folder = RunFolder(path)
        make_folder(path)
        # Write rows with only the round's number, as rounds of a fleet have no metrics.
        rows = "".join(f"{number}\n" for number in (ROUND, *range(1, completed + 1)))
        write_text(folder.metrics, rows)
        kept = trained_with(spec, fingerprint)
        checkpoints = CheckpointFolder(folder.checkpoints, keep=1, trained_with=kept)
        checkpoints.save(completed, state, algorithm.models(state.algorithm))
        folder.write_config(spec, fingerprint, {})
    label, at = algorithm_label(spec.config.algorithm), args.output_dir
    print(f"{label} on {spec.task} after {counted(completed, 'round')}: {at}")
    print(
        f"to go on in simulation: ./run train {shlex.quote(f'--output_dir={at}')} "
        f"--resume --rounds={completed + 1}, or more"
    )


def _exported_run(manifest: Mapping[str, Any], completed: int, given: RunArguments) -> RunSettings:
    """Returns the settings of the run that continues a fleet's rounds.

    Settings that do not affect the plan, such as the runtime, have the task's defaults. The number
    of rounds defaults to the number of completed rounds.
    """
    if manifest.get("kind") == EVALUATION:
        raise UserError(
            "--plan: expected the export of training, found the export of an evaluation, whose "
            "rounds do not change the server's state"
        )
    if "differential_privacy" in manifest.get("privacy", {}):
        raise UserError(
            "--plan: expected the export of a run without --privacy, found the export of a private "
            "run: only its server knows the noise key and the later releases"
        )
    task = manifest["task"]
    settings = stored_values(build(RunConfig, DEFAULTS[task].settings))
    flags = {
        "task": task,
        "data_dir": None,
        "data": None,
        # These options contain no paths, because the manifest omits them.
        **option_values(task_options(task, manifest[OPTIONS])),
        **{name: settings[name] for name in SIMULATION_SETTINGS},
        **manifest["settings"],
        "aggregation": PROFILES[manifest["profile"]].aggregation,
        "rounds": max(1, completed),
    }
    try:
        exported = from_flags(flags)
    except KeyError as e:
        raise UserError(f"manifest.json: settings: expected the setting {e}, found none") from e
    return given.based_on(exported)


def restored_state(template: RunState, tensors: Mapping[str, np.ndarray], where: str) -> RunState:
    """Returns a state with the values of a server's tensors.

    Args:
        template: A state of the same algorithm and aggregation.
        tensors: Tensors by name, as `read_server_state` returns them.
        where: Path of the file with the tensors, for error messages.
    """
    names, values = leaf_names(template), []
    for name, leaf in zip(names, tf.nest.flatten(template)):
        if name not in tensors:
            raise UserError(f"{where}: expected the tensor {name} of this algorithm, found none")
        expected, actual = np.asarray(leaf), tensors[name]
        if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
            raise UserError(
                f"{where}: {name}: expected {expected.dtype}{list(expected.shape)} of this model "
                f"and algorithm, found {actual.dtype}{list(actual.shape)}"
            )
        values.append(actual[()])
    if more := sorted({*tensors} - {*names}):
        raise UserError(
            f"{where}: expected only tensors of this algorithm, found the tensor {more[0]} as well"
        )
    return tf.nest.pack_sequence_as(template, values)


IMPORT_STATE = RunCommand(
    "import_state",
    ImportStateOptions,
    import_state,
    settings=_SETTINGS,
    has_runtime=False,
)
