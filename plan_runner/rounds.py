"""A sequence of rounds: their cohorts, the kinds of plans, and the files of each round."""

import dataclasses
import itertools
import json
import math
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from plan_runner import export as exports
from plan_runner import plan_pb2
from plan_runner.client import Client
from plan_runner.daf import DafProfile
from plan_runner.errors import PlanError, counted, reason
from plan_runner.export import METRICS, STATE, Export, Manifest, TensorType
from plan_runner.graph_session import check_tensors, read_checkpoint, type_of, write_checkpoint
from plan_runner.plan_messages import parse_plan
from plan_runner.profile import Profile, RoundOutcome
from plan_runner.secure import SecureProfile
from plan_runner.tflite import TfLiteBeside

_NOBODY = "-"
PROFILES: dict[str, Callable[[plan_pb2.Plan], Profile]] = {
    "daf": DafProfile,
    "secure": SecureProfile,
}
_PREFIX = "metrics/"


def drawn_cohorts(
    clients: Mapping[str, Client], rounds: int, clients_per_round: Optional[int], seed: int
) -> list[list[Client]]:
    """Returns the clients of every round, sorted by name: all of them, or so many by chance."""
    names = sorted(clients)
    if clients_per_round is None:
        return [[clients[name] for name in names]] * rounds
    if clients_per_round > len(names):
        raise PlanError(
            f"--clients_per_round: expected at most {len(names)}, the number of clients, "
            f"found {clients_per_round}"
        )
    generator = random.Random(seed)
    return [
        [clients[name] for name in sorted(generator.sample(names, clients_per_round))]
        for _ in range(rounds)
    ]


def written_cohorts(path: Path, clients: Mapping[str, Client]) -> list[list[Client]]:
    """Reads cohorts from a file: a line per round, of names with commas between them, or "-".

    A round of "-" is one without clients.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise PlanError(f"{path}: expected a text file, cannot read it ({reason(e)})") from e
    if not lines:
        raise PlanError(f"{path}: expected a line per round, found none")
    return [_cohort(line, clients, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def _cohort(line: str, clients: Mapping[str, Client], where: str) -> list[Client]:
    if line.strip() == _NOBODY:
        return []
    names: Sequence[str] = [name.strip() for name in line.split(",")] if line.strip() else []
    if not names:
        raise PlanError(f"{where}: expected names of clients, found none")
    for name in names:
        if name not in clients:
            raise PlanError(f"{where}: expected names of clients, found {name!r}")
        if names.count(name) > 1:
            raise PlanError(f"{where}: expected every client once, found {name!r} again")
    return [clients[name] for name in names]


def load_profile(name: str, plan: plan_pb2.Plan) -> Profile:
    """Returns what plays a plan of the profile of that name."""
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise PlanError(f"manifest.json: profile: expected one of {known}, found {name!r}")
    return PROFILES[name](plan)


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """The report of a round.

    Attributes:
        number: Number of the round in this run, from 1.
        clients: How many took part.
        state: The server's tensors, named `server/...`.
        metrics: The round's, named `metrics/...`.
        bytes_down: The size of the checkpoint that every client got.
        bytes_up: The mean size of what a client sent.
        outputs: The server's further outputs, by name.
    """

    number: int
    clients: int
    state: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray]

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """State and metrics."""
        return {**self.state, **self.metrics}


def run_rounds(
    export: Export,
    cohorts: Iterable[Sequence[Client]],
    state: Optional[Path] = None,
    begins: Callable[[str], None] = lambda step: None,
    beside: Optional[TfLiteBeside] = None,
) -> Iterator[RoundResult]:
    """Plays a round per cohort; yields what each has led to.

    Args:
        export: The export, whose graphs are code.
        cohorts: The clients of every round, in the order in which they are summed.
        state: A checkpoint of the server's state to begin with, instead of the export's own.
        begins: Called with the name of each round when it begins.
        beside: A second runner of every client, whose results are compared.
    """
    manifest = export.manifest
    initial = export.read(exports.SERVER_STATE) if state is None else _content(state)
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as scratch:
        # A copy: TensorFlow takes the name of a checkpoint for a pattern.
        current = Path(scratch) / "server_state.ckpt"
        current.write_bytes(initial)
        where = str(state or export.folder / exports.SERVER_STATE)
        check_tensors(read_checkpoint(current, where), manifest.server_state, where)
        plan = parse_plan(export.read(exports.PLAN), exports.PLAN)
        profile = load_profile(manifest.profile, plan)
        profile.client.beside = beside
        try:
            for number, clients in enumerate(cohorts, 1):
                _check_size(len(clients), manifest, number)
                begins(f"round {number}")
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    outcome = profile.run_round(current, clients, Path(folder))
                result = round_result(number, len(clients), outcome, manifest)
                write_checkpoint(current, result.state)
                yield result
        finally:
            profile.close()


def round_result(
    number: int, clients: int, outcome: RoundOutcome, manifest: Manifest
) -> RoundResult:
    """Returns what a round has led to, after a check of its tensors.

    Metrics are no part of the state that the next round begins with.

    Args:
        number: Number of the round.
        clients: How many took part.
    """
    place, metrics = f"round {number}: the new state", manifest.metrics
    tensors = with_metrics(outcome.tensors, outcome.outputs, metrics, place)
    check_tensors(tensors, {**manifest.server_state, **metrics}, place)
    return RoundResult(
        number,
        clients,
        {name: tensors[name] for name in manifest.server_state},
        {name: tensors[name] for name in metrics},
        outcome.bytes_down,
        outcome.bytes_up,
        other_outputs(outcome.outputs, metrics),
    )


def _check_size(clients: int, manifest: Manifest, number: int) -> None:
    if not clients and not manifest.has_noise:
        # With noise a round without clients is valid too, and must look like the others.
        raise PlanError(f"round {number}: expected at least 1 client, found 0")
    most = manifest.max_clients
    if most is not None and clients > most:
        raise PlanError(
            f"round {number}: expected at most {counted(most, 'client')}, for whom secure sums "
            f"have room, found {clients}; export with a larger --max_clients_per_round"
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a checkpoint, cannot read it ({e.strerror})") from e


def write_results(folder: Path, rows: Sequence[str], state: Mapping[str, np.ndarray]) -> None:
    """Writes the rows of the rounds so far and the state after the last one to a new folder."""
    folder.mkdir(parents=True)
    (folder / METRICS).write_text("".join(f"{row}\n" for row in rows))
    write_checkpoint(folder / STATE, state)


def metrics_row(result: RoundResult) -> str:
    """Returns a round's line of `metrics.jsonl`."""
    return json.dumps(
        {
            "round": result.number,
            "clients": result.clients,
            "metrics": {
                name[len(_PREFIX) :] if name.startswith(_PREFIX) else name: _plain(value.tolist())
                for name, value in sorted({**result.metrics, **result.outputs}.items())
            },
            "bytes_down": result.bytes_down,
            "bytes_up": result.bytes_up,
        },
        allow_nan=False,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    # JSON has no NaN and no infinities.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def with_metrics(
    tensors: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, TensorType],
    where: str,
) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint and the metrics among the outputs of a round.

    Args:
        tensors: The server's checkpoint; earlier plans have their metrics only there.
        outputs: The server's outputs, by name: a metric, or each of its elements as NAME/INDEX.
        where: The round, for messages.
    """
    together = dict(tensors)
    for name, kind in expected.items():
        found = _metric(name, kind, outputs, where)
        if found is None:
            continue
        written = together.setdefault(name, found)
        if type_of(written) != type_of(found) or written.tobytes() != found.tobytes():
            raise PlanError(
                f"{where}: {name}: expected the same value in the checkpoint and the output, found "
                "two"
            )
    return together


def other_outputs(
    outputs: Mapping[str, np.ndarray], metrics: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Returns the outputs that are no part of one of the metrics, such as values of all domains."""
    parts = {part for name, kind in metrics.items() for part in (name, *_elements(name, kind))}
    return {name: value for name, value in outputs.items() if name not in parts}


def _metric(
    name: str, kind: TensorType, outputs: Mapping[str, np.ndarray], where: str
) -> Optional[np.ndarray]:
    if name in outputs:
        return outputs[name]
    parts = _elements(name, kind)
    found = [outputs[part] for part in parts if part in outputs]
    if not found:
        return None
    if len(found) != len(parts) or any(value.shape for value in found):
        raise PlanError(
            f"{where}: {name}: expected {len(parts)} scalars, one for each element, found "
            f"{len(found)} outputs"
        )
    return np.array(found, found[0].dtype).reshape([size or 0 for size in kind.shape])


def _elements(name: str, kind: TensorType) -> list[str]:
    sizes = [size or 0 for size in kind.shape]
    return ["/".join(map(str, (name, *at))) for at in itertools.product(*map(range, sizes))]
