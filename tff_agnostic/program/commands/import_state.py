"""The command import_state: a run from the checkpoint of a fleet's server."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

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
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.commands.command_line import DataOptions, RunArguments, RunCommand
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import build, option_values
from tff_agnostic.program.options.tasks import check_format
from tff_agnostic.program.options.tasks import task_options as typed_task_options
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
from tff_agnostic.program.runs.spec import RunSettings, based_on, from_flags
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.task import DATA, Task

# The tensor of a server's state with the number of completed rounds.
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
        output_dir: Folder of the run to make; new or empty.
        trust: Read the checkpoint without a sandbox, if the kernel has no Landlock or no seccomp:
            only for a checkpoint that you trust.
        max_memory_gb: Memory of the process that reads the checkpoint, in 10^9 bytes.
    """

    plan: Path = dataclasses.field(kw_only=True)
    server_state: Path = dataclasses.field(kw_only=True)
    output_dir: Path = dataclasses.field(kw_only=True)
    trust: bool = False
    max_memory_gb: float = DEFAULT_LIMITS.max_memory_gb


def exported_run(
    manifest: Mapping[str, Any],
    completed: int,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path],
    data: Optional[Path],
) -> RunSettings:
    """Returns the run that continues a fleet's rounds.

    Settings that do not affect the plan, such as the runtime, have the task's defaults. The number
    of rounds defaults to the completed ones.

    Args:
        manifest: Manifest of the export.
        completed: Number of completed rounds of the fleet's state.
        given: Settings that the user gave, by flag.
        task_options: Options of the task that the user gave.
        data_dir: Folder with the task's files; None for the default.
        data: The client store; None if the user gives none.
    """
    if manifest.get("kind") == EVALUATION:
        raise UserError(
            "--plan: expected the export of training, found one of an evaluation: its rounds leave "
            "the server's state as it was"
        )
    if "differential_privacy" in manifest.get("privacy", {}):
        raise UserError(
            "--plan: expected the export of a run without --privacy, found one of a private run: "
            "only its server knows its key and its later releases"
        )
    task = manifest["task"]
    settings = stored_values(build(RunConfig, DEFAULTS[task].settings))
    flags = {
        "task": task,
        "data_dir": None,
        "data": None,
        # The manifest omits paths.
        **option_values(typed_task_options(task, manifest[OPTIONS])),
        **{name: settings[name] for name in SIMULATION_SETTINGS},
        **manifest["settings"],
        "aggregation": PROFILES[manifest["profile"]].aggregation,
        "rounds": max(1, completed),
    }
    try:
        exported = from_flags(flags)
    except KeyError as e:
        raise UserError(f"manifest.json: settings: expected {e} of a run, found none") from e
    return based_on(exported, given, task_options, data_dir, data)


def check_fingerprint(manifest: Mapping[str, Any], fingerprint: Mapping[str, str]) -> None:
    """Checks that a run has the same parts as an export, such as vocabulary and code.

    The examples may differ, as nodes have their own.

    Args:
        manifest: Manifest of the export.
        fingerprint: `RunSettings.fingerprint` of the run.
    """
    for name, expected in manifest.get(FINGERPRINT, {}).items():
        actual = fingerprint.get(name)
        if name != DATA and actual != expected:
            raise UserError(
                f"--plan: expected the {name} of its export ({expected}), found {actual}"
            )


class ImportedRun:
    """A run that takes over a fleet's state.

    Args:
        task: The run's task, loaded.

    Attributes:
        initial: The state before its first round.
        fingerprint: Digests of the run's parts.
    """

    def __init__(self, spec: RunSettings, task: Task) -> None:
        self._spec = spec
        self._algorithm = build_algorithm(spec, task)
        self.fingerprint = spec.fingerprint(task)
        self.initial: RunState = Round(self._algorithm, spec.build_aggregation()).initialize()

    def write(self, folder: RunFolder, state: RunState) -> None:
        """Writes a folder for `train --resume`, `evaluate`, `save_model` and `export`.

        Its rows of metrics contain only the indices of the fleet's rounds.
        """
        completed = int(state.round_num)
        make_folder(folder.path)
        rows = "".join(f"{number}\n" for number in (ROUND, *range(1, completed + 1)))
        write_text(folder.metrics, rows)
        models: Mapping[str, ModelWeights] = self._algorithm.models(state.algorithm)
        kept = trained_with(self._spec, self.fingerprint)
        checkpoints = CheckpointFolder(folder.checkpoints, keep=1, trained_with=kept)
        checkpoints.save(completed, state, models)
        folder.write_config(self._spec, self.fingerprint, {})


def restored_state(template: RunState, tensors: Mapping[str, np.ndarray], where: str) -> RunState:
    """Returns a state with the values of a server's tensors.

    Args:
        template: A state of the same algorithm and aggregation.
        tensors: Tensors by name, as `read_server_state` returns them.
        where: Path of the tensors, for the message.
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
        raise UserError(f"{where}: expected the state of this algorithm, found {more[0]} as well")
    return tf.nest.pack_sequence_as(template, values)


@dataclasses.dataclass(frozen=True)
class ServerRun:
    """The run made from a server's state, with its number of completed rounds."""

    path: Path
    spec: RunSettings
    completed: int


def import_state(given: RunArguments) -> ServerRun:
    """Creates the run's folder."""
    args = given.args
    plan, server_state = args.plan, args.server_state
    check_free(args.output_dir, "--output_dir")
    try:
        tensors = read_server_state(plan, server_state, args.max_memory_gb, args.trust)
    except PlanError as e:
        raise UserError(str(e)) from e
    manifest = read_json(plan / "manifest.json")
    check_format(plan / "manifest.json", manifest.get(SETTINGS_FORMAT))
    options = given.task_options(manifest["task"])
    completed = int(tensors[ROUND_NUM])
    spec = exported_run(manifest, completed, given.settings, options, args.data_dir, args.data)
    if spec.config.rounds < completed:
        raise UserError(
            f"--rounds: expected at least {completed}, which {server_state} has already, found "
            f"{spec.config.rounds}"
        )
    run = ImportedRun(spec, spec.load_task())
    check_fingerprint(manifest, run.fingerprint)
    state = restored_state(run.initial, tensors, str(server_state))
    with new_folder(args.output_dir, "--output_dir") as path:
        run.write(RunFolder(path), state)
    return ServerRun(args.output_dir, spec, completed)


def _show(run: ServerRun) -> None:
    label = algorithm_label(run.spec.config.algorithm)
    print(f"{label} on {run.spec.task} after {counted(run.completed, 'round')}: {run.path}")
    print(
        f"to go on in simulation: ./run train {shlex.quote(f'--output_dir={run.path}')} "
        f"--resume --rounds={run.completed + 1}, or more"
    )


IMPORT_STATE = RunCommand(
    "import_state", ImportStateOptions, import_state, _show, settings=_SETTINGS, has_runtime=False
)
