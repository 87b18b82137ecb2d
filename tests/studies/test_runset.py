"""A study's runs resume after kills, are shared by processes, have first stages, or end early."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.options.process import Interrupted, StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.studies.runset import Job, Pruned, RunSet, run_folder
from tff_agnostic.training.divergence import Diverged

_ROUNDS = 5
_IDENTITY = {"task": "sums", "search": {"rate": "0..1"}}


class SumTrainer:
    """A trainer that adds a number and saves the sum in each round, after `before_round`."""

    def __init__(self, before_round=lambda folder, round_num: None):
        self._before_round = before_round

    def is_complete(self, settings, folder):
        saved = self._saved(folder)
        if saved["settings"] not in (None, settings):
            raise UserError(f"{folder} holds another run")
        return len(saved["sums"]) == _ROUNDS

    def train(self, settings, folder, observers):
        saved = self._saved(folder)
        while len(saved["sums"]) < _ROUNDS:
            self._before_round(folder, len(saved["sums"]) + 1)
            total = (saved["sums"] or [settings["start"]])[-1] + settings["number"]
            saved = {"settings": settings, "sums": [*saved["sums"], total]}
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "sums.json", saved)
            with open(folder.parent / "rounds.log", "a") as log:
                log.write(f"{len(saved['sums'])} {os.getpid()}\n")
        return []

    def _saved(self, folder):
        file = folder / "sums.json"
        return json.loads(file.read_text()) if file.exists() else {"settings": None, "sums": []}


def _job(number, **more):
    return Job(f"row/number_{number}", {"start": 0, "number": number}, **more)


_JOBS = [_job(number) for number in (1, 2, 3)]


def _make(folder, jobs=_JOBS, trainer=None, resume=False, stop=None, identity=_IDENTITY):
    with RunSet(folder, identity, trainer or SumTrainer(), resume, stop or StopRequest()) as runs:
        outcomes = runs.make(jobs, LongWork("sums", len(jobs), "runs", visible=False))
    return runs, outcomes


def _sums(folder, name):
    return json.loads((run_folder(folder, name) / "sums.json").read_text())["sums"]


def _child(target, *arguments):
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def test_killed_study_resumes_its_run(tmp_path):
    def kill(folder, round_num):
        if "number_2" in str(folder) and round_num == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    child = _child(_make, tmp_path / "study", _JOBS, SumTrainer(kill))
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert _sums(tmp_path / "study", "row/number_2") == [2, 4, 6]
    _make(tmp_path / "study", resume=True)
    _make(tmp_path / "whole")
    for job in _JOBS:
        assert _sums(tmp_path / "study", job.name) == _sums(tmp_path / "whole", job.name)
    log = run_folder(tmp_path / "study", "row/number_2").parent / "rounds.log"
    # Every round ran once.
    assert [int(line.split()[0]) for line in log.read_text().splitlines()] == [1, 2, 3, 4, 5]


def test_two_processes_share_the_runs(tmp_path):
    trainer = SumTrainer(lambda folder, round_num: time.sleep(0.02))
    jobs = [_job(number) for number in range(6)]
    children = [_child(_make, tmp_path / "study", jobs, trainer, True) for _ in range(2)]
    for child in children:
        child.join()
        assert child.exitcode == 0
    makers = []
    for job in jobs:
        log = run_folder(tmp_path / "study", job.name).parent / "rounds.log"
        rounds, pids = zip(*(line.split() for line in log.read_text().splitlines()))
        assert list(map(int, rounds)) == list(range(1, _ROUNDS + 1))
        makers += set(pids)
    assert len(makers) == len(jobs) and len(set(makers)) == 2


def test_two_jobs_share_their_first_stage(tmp_path):
    first = Job("first", {"start": 0, "number": 10})

    def second_stage(settings, path):
        return {**settings, "start": json.loads((path / "sums.json").read_text())["sums"][-1]}

    jobs = [_job(number, after=first, second_stage=second_stage) for number in (1, 2)]
    runs, outcomes = _make(tmp_path, jobs)
    assert [outcome.reason for outcome in outcomes] == [None, None]
    assert _sums(tmp_path, "row/number_2") == [52, 54, 56, 58, 60]
    log = run_folder(tmp_path, "first").parent / "rounds.log"
    assert len(log.read_text().splitlines()) == _ROUNDS
    assert runs.seconds("row", "first") == runs.seconds() > 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Pruned("after round 3"), "after round 3"), (Diverged("inf"), "diverged: inf")],
)
def test_ended_run_keeps_its_reason(tmp_path, error, reason):
    def fail(folder, round_num):
        if "number_1" in str(folder) and round_num == 3:
            raise error

    _, outcomes = _make(tmp_path, trainer=SumTrainer(fail))
    assert [outcome.reason for outcome in outcomes] == [reason, None, None]
    runs, outcomes = _make(tmp_path, resume=True)
    assert outcomes[0].reason == reason and runs.open(_JOBS) == []
    # A run that would start from the ended run's model ends for the same reason.
    (outcome,) = _make(tmp_path, [_job(4, after=_JOBS[0])], resume=True)[1]
    assert outcome.reason == reason


def test_signal_stops_after_a_run(tmp_path):
    stop = StopRequest()

    def request(folder, round_num):
        stop.signal_number = signal.SIGTERM

    with pytest.raises(Interrupted, match="stopped and saved after row/number_1"):
        _make(tmp_path, trainer=SumTrainer(request), stop=stop)
    assert [path.name for path in (tmp_path / "runs" / "row").iterdir()] == ["number_1"]


def test_rejects_folders_of_other_studies(tmp_path):
    _make(tmp_path)
    with pytest.raises(UserError, match="holds this study already: add --resume"):
        _make(tmp_path)
    other = {**_IDENTITY, "search": {"rate": "0..2"}}
    message = "holds another study: search: rate was '0..1' there, and is '0..2' here"
    with pytest.raises(UserError, match=message):
        _make(tmp_path, resume=True, identity=other)
    with pytest.raises(UserError, match="row/number_1/run holds another run"):
        _make(tmp_path, [Job("row/number_1", {"start": 5, "number": 1})], resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UserError, match=r"expected a new or empty folder .* with other content"):
        _make(tmp_path / "other", resume=True)


def test_invalid_first_run_leaves_no_study(tmp_path):
    def refuse(folder, round_num):
        raise UserError("--rate: expected a number")

    with pytest.raises(UserError, match=r"^row/number_1: --rate: expected a number"):
        _make(tmp_path / "study", trainer=SumTrainer(refuse))
    assert list(tmp_path.iterdir()) == []
    # A folder with additional files still belongs to the study.
    (tmp_path / "study").mkdir()
    with (
        pytest.raises(UserError),
        RunSet(tmp_path / "study", _IDENTITY, SumTrainer(refuse), False, StopRequest()) as runs,
    ):
        (tmp_path / "study" / "journal.log").touch()
        runs.make(_JOBS, LongWork("sums", 1, "runs", visible=False))
    with pytest.raises(UserError, match="holds another study"):
        _make(tmp_path / "study", identity={"task": "other"}, resume=True)


def test_run_that_another_process_holds_is_skipped(tmp_path):
    runs = RunSet(tmp_path, _IDENTITY, SumTrainer(), False, StopRequest())
    with runs.hold("trial") as is_ours, runs.hold("trial") as is_ours_again:
        assert is_ours and is_ours_again
        child = _child(_assert_held, tmp_path)
        child.join()
        assert child.exitcode == 0


def _assert_held(folder):
    with RunSet(folder, _IDENTITY, SumTrainer(), True, StopRequest()).hold("trial") as is_ours:
        assert not is_ours
