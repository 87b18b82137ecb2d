"""The learning process runs in TFF's training program, with TFF's state and metrics managers."""

import asyncio
import collections
import csv
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.support.clients import random_client
from tests.support.comparing import assert_identical
from tests.support.options import make_options
from tff_agnostic.algorithms import AgnosticFedAvgOptions, build_agnostic_fed_avg
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.tff import ProgramContext, TffWorker, create_context

_NUM_CLIENTS = 12
# Cohort sizes below and above the number of a client's columns, as explained in `ProgramContext`.
_CLIENTS_PER_ROUND = (2, 2, 5, 5)


def _client(index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(index)
    client = random_client(rng, 3 + index, range(2))
    return collections.OrderedDict((key, client[key]) for key in ("x", "y", "domain_id"))


class _Iterator(tff.program.FederatedDataSourceIterator):
    """An iterator that selects clients in turn, and whose only state is a position."""

    def __init__(self, position: int = 0) -> None:
        self._position = position

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "_Iterator":
        return cls(int.from_bytes(buffer, "big"))

    def to_bytes(self) -> bytes:
        return self._position.to_bytes(8, "big")

    @property
    def federated_type(self) -> tff.FederatedType:
        return _process().next.type_signature.parameter[1]

    def select(self, k: Optional[int] = None) -> Sequence[Any]:
        assert k is not None
        first = self._position
        self._position += k
        return [_client(i % _NUM_CLIENTS) for i in range(first, first + k)]


class _Source(tff.program.FederatedDataSource):
    @property
    def federated_type(self) -> tff.FederatedType:
        return self.iterator().federated_type

    def iterator(self) -> _Iterator:
        return _Iterator()


@functools.cache
def _process() -> tff.learning.templates.LearningProcess:
    options = make_options(AgnosticFedAvgOptions, lambda_learning_rate=0.1, window=2)
    return build_agnostic_fed_avg(logistic_regression(4, 3), 2, options)


def _installed(context: Any) -> Any:
    return tff.framework.get_context_stack().install(context)


@pytest.fixture(scope="module")
def worker() -> Iterator[TffWorker]:
    with TffWorker() as worker:
        yield worker


def _train(worker: TffWorker, folder: Path, rounds: int, clients: int) -> None:
    process = _process()
    program = tff.learning.programs.train_model(
        train_process=process,
        train_data_source=_Source(),
        train_per_round_clients=clients,
        train_total_rounds=rounds,
        program_state_manager=tff.program.FileProgramStateManager(folder / "state"),
        model_output_manager=tff.program.SavedModelFileReleaseManager(folder / "model", "at_"),
        train_metrics_manager=tff.program.CSVFileReleaseManager(
            folder / "metrics.csv", key_fieldname="round"
        ),
        evaluation_manager=None,
        evaluation_periodicity=1,
    )
    with _installed(ProgramContext(worker)):
        asyncio.run(program)


def _without_program(worker: TffWorker, clients: Sequence[int]) -> tuple[Any, list[Any]]:
    """Returns the state and metrics of rounds with cohorts of the given sizes."""
    process = _process()
    iterator = _Source().iterator()
    metrics = []
    with _installed(create_context(worker)):
        state = process.initialize()
        for number in clients:
            state, round_metrics = process.next(state, iterator.select(number))
            metrics.append(round_metrics)
    return state, metrics


def _saved_state(folder: Path, version: int, like: Any) -> Any:
    manager = tff.program.FileProgramStateManager(folder / "state")
    structure = tff.learning.programs.ProgramState(like, 0, 0, _Source().iterator())
    return asyncio.run(manager.load(version, structure))


@pytest.fixture(scope="module")
def run(worker, tmp_path_factory) -> Path:
    """Output folder of a program of four rounds, which stopped after two rounds and resumed."""
    folder = tmp_path_factory.mktemp("program")
    before = _worker_processes()
    assert worker.pid in before
    _train(worker, folder, rounds=2, clients=_CLIENTS_PER_ROUND[0])
    _train(worker, folder, rounds=4, clients=_CLIENTS_PER_ROUND[2])
    assert _worker_processes() == before
    return folder


@pytest.fixture(scope="module")
def expected(worker) -> tuple[Any, list[Any]]:
    return _without_program(worker, _CLIENTS_PER_ROUND)


@pytest.mark.nightly
def test_resumed_program_equals_uninterrupted_rounds(run, expected):
    saved = _saved_state(run, version=4, like=expected[0])
    assert saved.round_number == 4
    assert_identical(saved.state, expected[0])


@pytest.mark.nightly
def test_csv_has_each_rounds_domain_metrics(run, expected):
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    for row, metrics, clients in zip(rows, expected[1], _CLIENTS_PER_ROUND):
        # `train_model` writes the metrics of ("client_work", "train") to "model_metrics".
        losses = [float(value) for value in row["model_metrics/loss"].strip("[]").split(",")]
        np.testing.assert_allclose(losses, metrics["client_work"]["train"]["loss"], rtol=1e-6)
        assert int(row["clients/contributed"]) == clients
        assert "domain_weights/lambda" in row


@pytest.mark.nightly
def test_program_runs_with_one_client(worker, tmp_path):
    _train(worker, tmp_path, rounds=1, clients=1)
    state, _ = _without_program(worker, [1])
    assert_identical(_saved_state(tmp_path, version=1, like=state).state, state)


@pytest.mark.nightly
def test_program_can_pass_results_before_they_are_computed(worker):
    process = _process()

    async def two_rounds() -> Any:
        state = process.initialize()
        for start in (0, 2):
            state = process.next(state, [_client(start), _client(start + 1)]).state
        return await tff.program.materialize_value((state, process.get_model_weights(state)))

    with _installed(ProgramContext(worker)):
        state, weights = asyncio.run(two_rounds())
    expected, _ = _without_program(worker, [2, 2])
    assert_identical(state, expected)
    assert_identical(weights, expected.algorithm.weights)


def _worker_processes() -> set[int]:
    """Returns the ids of this process's children that are TFF workers."""
    result = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("worker_binary") and int(fields.split()[1]) == os.getpid():
            result.add(int(stat.parent.name))
    return result
