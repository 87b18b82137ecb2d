"""The command export: exports a task's federated algorithm as a plan for a fleet of devices."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast

from tff_agnostic.aggregations.aggregation import LimitedOptions
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import check_free, new_folder
from tff_agnostic.base.options import OneOf, Options
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.deployment.backends import (
    BACKENDS,
    FCP,
    PLAN,
    ServerTaskSettings,
    choose_profile,
    demo_size,
    write_readme,
)
from tff_agnostic.deployment.export import export
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import EVALUATION, KINDS, TRAINING
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, TaskOptions
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.flags import NONE, option_flags, option_values
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.export import (
    SIMULATION_SETTINGS,
    DeviceSettings,
    export_request,
    summary,
    write_clients,
    write_test_clients,
)
from tff_agnostic.program.runs.folder import find_checkpoint, with_saved_start
from tff_agnostic.program.runs.spec import RunSettings, check_clients_per_round, resolve
from tff_agnostic.program.runs.train_run import started
from tff_agnostic.tasks.task import DATA

if TYPE_CHECKING:
    from tff_agnostic.runtimes.tff import TffRuntime

_DEFAULT_TASK = "digits"
# Instructions in the README of a fleet's export.
_HOW_TO = """\
    ./run fleet demo --export=plan --clients=CLIENTS --nodes={nodes} --rounds=3

runs it on this machine, where CLIENTS has a file NAME.tfrecord per client; more:
docs/how_to/live_fleet.md.
"""
# All flags that any kind of privacy has, except those that limit clients.
_NOISE_FLAGS = {flag.name for spec in PRIVACIES.values() for flag in option_flags(spec.options)} - {
    *(flag.name for flag in option_flags(LimitedOptions)),
}


@dataclasses.dataclass(frozen=True)
class ExportOptions(DeviceSettings, ServerTaskSettings, TaskOptions):
    """Flags of `export` in addition to the settings of runs.

    Attributes:
        output_dir: Folder to write; new or empty.
        kind: Kind of rounds: training, or evaluation of a checkpoint's model.
        models: With --kind=evaluation: the one model of a family to evaluate, such as
            conformity_0.5. [the main model]
        backend: Backend that executes the plan: fcp (servers and devices of the platform; only the
            format is supported) or flower (a live fleet: ./run fleet).
        profile: Kind of plan: daf (plain sums, for current servers) or secure (secure sums only,
            for servers with a secure aggregation protocol). [daf; secure with --backend=flower]
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it. The
            deployment starts from it; task and settings default to the run's.
        clients_dir: Folder for the task's clients, for run_plan: a TFRecord file per training
            client, and the next cohorts of a simulation. For an evaluation: all test clients, in
            one cohort.
    """

    output_dir: Path = dataclasses.field(kw_only=True)
    kind: Annotated[str, OneOf(KINDS)] = TRAINING
    models: Optional[tuple[str, ...]] = None
    backend: Annotated[str, OneOf(BACKENDS)] = FCP
    profile: Optional[Annotated[str, OneOf(PROFILES)]] = None
    checkpoint: Optional[Path] = None
    clients_dir: Optional[Path] = None


def export_plan(given: RunArguments) -> None:
    """Exports a plan, and prints its summary."""
    with flags_in_errors(given.args):
        profile = choose_profile(given.args.backend, given.args.profile)
    args: ExportOptions = dataclasses.replace(given.args, profile=profile)
    given = dataclasses.replace(given, args=args)
    folder, clients_dir, backend = args.output_dir, args.clients_dir, BACKENDS[args.backend]
    for name in sorted(given.names):
        if name in backend.without:
            raise UserError(f"--{name} has no effect with --backend={args.backend}")
    saved, checkpoint = (
        (None, None) if args.checkpoint is None else find_checkpoint(args.checkpoint)
    )
    trained = None if saved is None else saved.spec()
    spec = _spec(given, trained)
    _check_exportable(spec, trained or spec)
    # Fail before the data are loaded.
    check_clients_per_round(spec.config, spec.build_aggregation())
    _check_folders(folder, clients_dir)
    spec = with_saved_start(saved, spec)
    task = spec.load_task()
    restore = (
        None if checkpoint is None else functools.partial(checkpoint.restore, where=args.checkpoint)
    )
    if clients_dir is not None and args.kind == TRAINING:
        with flags_in_errors(spec.config):
            check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    request = export_request(
        spec, task, profile, args, restore, args.kind, args, args.models, args.backend
    )
    if saved is not None:
        saved.check_fingerprint(spec.fingerprint(task), others=(DATA,))
    plan = folder / PLAN if backend.is_fleet else folder
    with started("tff", Options()) as runtime, flags_in_errors(args, spec.config):
        if backend.is_fleet:
            with new_folder(folder, "--output_dir") as path:
                manifest = export(path / PLAN, request, cast("TffRuntime", runtime))
                write_readme(path, manifest, _HOW_TO.format(nodes=demo_size(manifest)))
        else:
            manifest = export(folder, request, cast("TffRuntime", runtime))
    print(summary(manifest))
    if clients_dir is not None:
        example_format = request.example_format()
        if args.kind == EVALUATION:
            print(write_test_clients(clients_dir, task, example_format))
        else:
            completed = manifest["rounds_trained"]
            print(write_clients(clients_dir, spec.config, task, example_format, completed))
    replay = shlex.join(["./run", "run_plan", f"--plan={plan}", "--verify"])
    print(f"plan: {plan}; to replay its conformance rounds: {replay}")
    if backend.is_fleet:
        arguments = (f"--clients={clients_dir or 'CLIENTS'}", f"--nodes={demo_size(manifest)}")
        demo = ["./run", "fleet", "demo", f"--export={plan}", *arguments, "--rounds=3"]
        print(f"to run it with a fleet on this machine: {shlex.join(demo)}")


def _spec(given: RunArguments, trained: Optional[RunSettings]) -> RunSettings:
    """Returns the settings to deploy: given flags override the trained run's settings."""
    args, aggregation = given.args, PROFILES[given.args.profile].aggregation
    for name in given.settings:
        if name in _NOISE_FLAGS:
            raise UserError(
                f"--{name} has no effect on an export: the run of --checkpoint determines the noise"
            )
        if name.startswith("secure_") and aggregation != "secure":
            raise UserError(f"--{name} has no effect with --profile={args.profile}")
    settings = {**given.settings, "aggregation": aggregation}
    if trained is None:
        task = args.task or _DEFAULT_TASK
        return resolve(task, settings, given.task_options(task), args.data_dir, args.data)
    algorithm = given.settings.get("algorithm")
    if algorithm and is_user_file(algorithm):
        algorithm = str(Path(algorithm).resolve())
    for flag, before, now in (
        ("task", trained.task, args.task),
        ("algorithm", trained.config.algorithm, algorithm),
    ):
        if now not in (None, before):
            raise UserError(
                f"--{flag}: expected {before} as in the run of --checkpoint, found {now}"
            )
    return dataclasses.replace(given, settings=settings).based_on(trained)


def _check_exportable(spec: RunSettings, trained: RunSettings) -> None:
    if spec.config.pooled:
        raise UserError(
            "--pooled: expected a federated run to export, found a run on pooled examples"
        )
    aggregator = option_values(trained.config)["update_aggregator"]
    if aggregator != NONE:
        raise UserError(
            f"--update_aggregator: expected none for an export, found {aggregator}: servers that "
            "run a plan only sum updates"
        )


def _check_folders(folder: Path, clients_dir: Optional[Path]) -> None:
    check_free(folder, "--output_dir")
    if clients_dir is None:
        return
    check_free(clients_dir, "--clients_dir")
    one, other = folder.resolve(), clients_dir.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        # Keep the clients' files apart: executors reject a plan's folder with additional files.
        raise UserError(
            f"--clients_dir: expected a folder apart from {folder}, found {clients_dir}"
        )


EXPORT = RunCommand(
    "export", ExportOptions, export_plan, without=SIMULATION_SETTINGS, has_runtime=False
)
