"""Exports a task's federated algorithm as a plan for a fleet of devices.

Example: ./run export --task=digits --output_dir=export
"""

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Optional, cast

from absl import flags

from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.aggregations.noise_generators import NOISE_GENERATORS
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.algorithms.user_algorithm import is_user_file
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.deployment.export import TaskSettings, check_heeded, export
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import EVALUATION, KINDS, TRAINING
from tff_agnostic.errors import UserError
from tff_agnostic.folders import check_free
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_run_flags,
    define_task_flags,
    given_settings,
    given_task_options,
)
from tff_agnostic.run.export import (
    OF_SIMULATIONS,
    DeviceSettings,
    export_request,
    summary,
    write_clients,
    write_test_clients,
)
from tff_agnostic.run.folder import find_checkpoint, with_kept_model
from tff_agnostic.run.process import run_app
from tff_agnostic.run.spec import RunSpec, check_clients_per_round, inheriting, resolve
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.runtimes.tff import TffRuntime
from tff_agnostic.settings import OptionTable, flag_of, path_flag
from tff_agnostic.tasks.task import DATA

_DEFAULT_TASK = "digits"
# Its generator is the fleet's.
_GENERATOR = "noise_generator"
# Of whatever kind of privacy, beside the limits of clients.
_OF_NOISE = {flag_of(field) for spec in PRIVACIES.values() for field in fields(spec.options)} - {
    _GENERATOR,
    *(flag_of(field) for field in fields(ClientLimits)),
}
_DEFAULT_DEVICE = DeviceSettings()


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags(default=None)
    define_run_flags(without=OF_SIMULATIONS)
    flags.DEFINE_string("output_dir", None, "Folder to write; new or empty.")
    flags.DEFINE_string(
        "kind",
        TRAINING,
        "What a round does: training, or evaluation of a model of a training's checkpoint.",
    )
    flags.DEFINE_list(
        "models",
        None,
        "With --kind=evaluation: name of the model of a family to evaluate, such as "
        "conformity_0.5; a plan evaluates one. [the main model]",
    )
    OptionTable.of("flag", [("", "", TaskSettings)]).define()
    flags.DEFINE_string(
        "profile",
        "daf",
        "Kind of plan: daf (plain sums; current servers) or secure (secure sums only; a server "
        "with a secure aggregation protocol).",
    )
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Folder of a run (its newest checkpoint), or one checkpoint file in it, where the "
        "deployment goes on; task and settings are the run's unless flags say otherwise.",
    )
    flags.DEFINE_string(
        "collection_uri",
        _DEFAULT_DEVICE.collection_uri,
        "Which of a device's example collections is read.",
    )
    flags.DEFINE_string(
        "client_graph",
        _DEFAULT_DEVICE.client_graph,
        "Which graphs a device gets: tflite, or both, TensorFlow's as well, for clients that are "
        "built to run that one; it about doubles the download.",
    )
    flags.DEFINE_integer(
        "max_clients_per_round",
        None,
        "With --profile=secure: the most clients of a round that the sums have room for, as sums "
        "of more would wrap around; by default twice --clients_per_round. Twice as many cost a "
        "bit more for each number that a device sends.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "require_odp_ops",
        False,
        "Refuse a plan whose devices need ops that On-Device Personalization's lack, instead of "
        "listing them.",
    )
    flags.DEFINE_string(
        "clients_dir",
        None,
        "Folder to write the task's clients to, for run_plan: the training clients, a TFRecord "
        "file each, and the cohorts that a simulation would draw next; for an evaluation the test "
        "clients, and all of them as a cohort.",
    )


def main(argv: Sequence[str]) -> None:
    """Exports as the flags say, and prints what was written."""
    del argv
    if not flags.FLAGS.output_dir:
        raise UserError("--output_dir: expected the folder to write, found none")
    folder, clients_dir = Path(flags.FLAGS.output_dir), path_flag("clients_dir")
    profile, kind = flags.FLAGS.profile, flags.FLAGS.kind
    KINDS.given("--kind", kind)
    aggregation = PROFILES.given("--profile", profile).aggregation
    given = OptionTable.of("flag", [("", "", TaskSettings)]).from_flags()
    check_heeded(given, kind)
    task_settings = TaskSettings(**given)
    checkpoint = path_flag("checkpoint")
    trained = find_checkpoint(checkpoint) if checkpoint is not None else None
    spec = _spec(aggregation, trained[0].spec() if trained else None)
    if trained is not None:
        spec = with_kept_model(trained[0], spec)
    # Before the rest, which takes a while.
    check_clients_per_round(spec.config, spec.build_aggregation())
    _check_folders(folder, clients_dir)
    task = spec.load_task()
    restore = None
    if trained is not None:
        restore = functools.partial(trained[1].restore, where=flags.FLAGS.checkpoint)
    if clients_dir is not None and kind == TRAINING:
        check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    device = DeviceSettings(
        flags.FLAGS.collection_uri,
        flags.FLAGS.client_graph,
        flags.FLAGS.max_clients_per_round,
        flags.FLAGS.require_odp_ops,
        flags.FLAGS[_GENERATOR].value or _DEFAULT_DEVICE.noise_generator,
    )
    request = export_request(
        spec, task, profile, device, restore, kind, task_settings, flags.FLAGS.models
    )
    if trained is not None:
        trained[0].check_fingerprint(spec.fingerprint(task), others=(DATA,))
    with RUNTIMES["tff"](RuntimeOptions()) as runtime:
        manifest = export(folder, request, cast(TffRuntime, runtime))
    print(summary(manifest))
    example_format = request.example_format()
    if clients_dir is not None and kind == EVALUATION:
        print(write_test_clients(clients_dir, task, example_format))
    elif clients_dir is not None:
        completed = manifest["rounds_trained"]
        print(write_clients(clients_dir, spec.config, task, example_format, completed))
    replay = shlex.join(["./run", "run_plan", f"--plan={folder}", "--verify"])
    print(f"plan: {folder}; to replay its conformance rounds: {replay}")


def _check_folders(folder: Path, clients_dir: Optional[Path]) -> None:
    check_free(folder, "--output_dir")
    if clients_dir is None:
        return
    check_free(clients_dir, "--clients_dir")
    one, other = folder.resolve(), clients_dir.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        # A plan is refused that has other files beside its own.
        raise UserError(
            f"--clients_dir: expected a folder apart from {folder}, found {clients_dir}"
        )


def _spec(aggregation: str, trained: Optional[RunSpec]) -> RunSpec:
    """Returns the run to deploy: what the flags say, otherwise what was trained or is the default.

    Raises:
        UserError: If a flag is unknown, out of range, without effect, or of another task or
            algorithm than what was trained.
    """
    given = given_settings()
    for name in given:
        if name in _OF_NOISE:
            raise UserError(
                f"--{name} has no effect on an export, whose noise is that of --checkpoint's run"
            )
        if name.startswith("secure_") and aggregation != "secure":
            raise UserError(f"--{name} has no effect with --profile={flags.FLAGS.profile}")
    if trained is None:
        task = flags.FLAGS.task or _DEFAULT_TASK
        settings = {**given, "aggregation": aggregation}
        return resolve(task, settings, given_task_options(task), data_dir(), data())
    if PRIVACIES[trained.config.privacy].build is not None and _GENERATOR in given:
        NOISE_GENERATORS.given(f"--{_GENERATOR}", given.pop(_GENERATOR))
    task = trained.task
    _check_same("task", task, flags.FLAGS.task)
    _check_same("algorithm", trained.config.algorithm, _algorithm(given))
    settings = {**given, "aggregation": aggregation}
    return inheriting(trained, settings, given_task_options(task), data_dir(), data())


def _algorithm(given: Mapping[str, Any]) -> Optional[str]:
    name = given.get("algorithm")
    return str(Path(name).resolve()) if name and is_user_file(name) else name


def _check_same(flag: str, trained: str, given: Optional[str]) -> None:
    if given not in (None, trained):
        raise UserError(
            f"--{flag}: expected {trained} as in the run of --checkpoint, found {given}"
        )


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
