"""The run that an export was made of, as its manifest says."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.deployment.kinds import EVALUATION
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.errors import UserError
from tff_agnostic.program.deployed.exporting import (
    FINGERPRINT,
    OF_SIMULATIONS,
    OPTIONS,
    SETTINGS_FORMAT,
)
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.program.specs.earlier_run import inheriting
from tff_agnostic.program.specs.run_parts import by_flag, made_of
from tff_agnostic.program.specs.run_spec import RunSpec, from_flags
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import DATA, option_flag


def run_of_export(
    manifest: Mapping[str, Any],
    completed: int,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path],
    data: Optional[Path],
) -> RunSpec:
    """Returns the run that goes on where a fleet's rounds ended.

    What a plan does not depend on, such as the runtime, is the task's default; the run has as many
    rounds as are completed.

    Args:
        manifest: The export's.
        completed: Rounds of the state that the fleet led to.
        given: Settings that the user gave, by flag.
        task_options: Options of the task that were given.
        data_dir: Folder with the task's files, if it was given.
        data: The client store, if it was given.

    Raises:
        UserError: If the manifest is of an evaluation or of a private run, or a setting is out of
            range or without effect.
    """
    if manifest.get("kind") == EVALUATION:
        raise UserError(
            "--plan: expected the export of training, found one of an evaluation: its rounds leave "
            "the server's state as it was"
        )
    if "differential_privacy" in manifest.get("privacy", {}):
        raise UserError(
            "--plan: expected the export of a run without --privacy, found one of a private run: "
            "what it has released since, and its key, are known to its server alone"
        )
    task = manifest["task"]
    spec = TASKS[task]
    settings = by_flag(made_of(RunConfig, spec.defaults))
    options = {f.name: f.default for f in dataclasses.fields(spec.options)}
    options.update(manifest.get(OPTIONS, {}))
    flags = {
        "task": task,
        "data_dir": None,
        "data": None,
        # An export of an earlier release says less.
        "format": manifest.get(SETTINGS_FORMAT, 1),
        **{option_flag(task, f): options[f.name] for f in dataclasses.fields(spec.options)},
        **{name: settings[name] for name in OF_SIMULATIONS},
        **manifest["settings"],
        "aggregation": PROFILES[manifest["profile"]].aggregation,
        "rounds": max(1, completed),
    }
    try:
        exported = from_flags(flags)
    except KeyError as e:
        raise UserError(f"manifest.json: settings: expected {e} of a run, found none") from e
    return inheriting(exported, given, task_options, data_dir, data)


def check_made_of(manifest: Mapping[str, Any], fingerprint: Mapping[str, str]) -> None:
    """Checks that a run is made of what an export was: the same vocabulary, the same code.

    The examples may be others: a fleet's were.

    Args:
        manifest: The export's.
        fingerprint: `RunSpec.fingerprint` of the run.

    Raises:
        UserError: If something is another one.
    """
    for name, expected in manifest.get(FINGERPRINT, {}).items():
        found = fingerprint.get(name)
        if name != DATA and found != expected:
            raise UserError(
                f"--plan: expected the {name} that it was exported with ({expected}), found "
                f"another one ({found})"
            )
