"""Training, comparing and saving from Python: what the commands do, byte for byte."""

import contextlib
import dataclasses
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from binaries import compare as compare_binary
from binaries import train as train_binary
from tests import golden
from tests.binaries.harness import TOY, Caller, draw_nothing
from tests.tasks.custom.user_models import CLASSIFIER, model_file
from tff_agnostic import api
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tff
from tff_agnostic.data import tff_clients
from tff_agnostic.data.store import load_store
from tff_agnostic.program.runs import results, train_run
from tff_agnostic.runtimes.registry import RUNTIMES

_TOY: dict[str, Any] = {"num_clients": 8, "clients_per_round": 3}


@pytest.fixture(autouse=True)
def in_a_folder(cohort_runtime, tmp_path, monkeypatch) -> None:
    """The current folder is empty, and the session's runtime runs; nothing is drawn of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "draw_run", draw_nothing)
    spec = dataclasses.replace(
        RUNTIMES["cohort"], build=lambda options: contextlib.nullcontext(cohort_runtime)
    )
    monkeypatch.setattr(train_run, "RUNTIMES", {"cohort": spec})


@pytest.fixture
def call(cohort_runtime) -> Caller:
    return Caller({"cohort": cohort_runtime})


def _same(found: Path, expected: Path, *names: str) -> None:
    for name in names:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


_OF_RUN = ("config.json", "metrics.csv", "result.json", "model/model.keras")


@pytest.mark.nightly
def test_train_is_the_command(call, tmp_path):
    outcome = call(train_binary, *TOY, "--rounds=2", "--output_dir=of_command")
    assert outcome.status == 0, outcome
    run = api.train("toy_regression", rounds=2, output_dir="mine", show_progress=False, **_TOY)
    assert run.path == Path("mine")
    _same(run.path, Path("of_command"), *_OF_RUN)
    assert run.table in outcome.out
    assert run.result["rounds"] == 2 and list(run.history()["round"]) == [1, 2]
    weights = run.keras_model().get_weights()
    assert weights[0].item() == pytest.approx(run.history()["learned value"][-1])
    with pytest.raises(
        UserError, match=r"half\.keras: expected a Keras model, found model in mine"
    ):
        run.keras_model("half")
    (file,) = api.save_model(run.path, "saved")
    assert Path(file.path) == Path("saved/model.keras")
    assert file.check is not None and file.check.is_same
    _same(Path("saved"), run.path / "model", "model.keras")
    with pytest.raises(UserError, match=r"^--format: expected texts separated by commas, "):
        api.save_model(run.path, "again", "keras")
    assert not Path("again").exists()


@pytest.mark.nightly
def test_a_run_goes_on_with_the_settings_that_it_has(tmp_path):
    whole = api.train("toy_regression", rounds=3, seed=4, **_TOY)
    assert whole.path == Path("runs/toy_regression-agnostic_fed_avg-001")
    api.train("toy_regression", rounds=1, seed=4, output_dir="two", **_TOY)
    longer = api.train(output_dir="two", resume=True, rounds=3)
    _same(longer.path, whole.path, *_OF_RUN)
    with pytest.raises(UserError, match="two holds another run: --seed is 4 there and 5 here"):
        api.train(output_dir="two", resume=True, seed=5)


@pytest.mark.nightly
def test_compare_is_the_command(call, tmp_path):
    arms = "slow=fed_avg:client_learning_rate=0.01;agnostic_fed_avg"
    outcome = call(
        *(compare_binary, *TOY, "--rounds=1", "--trials=1", f"--arms={arms}", "--output_dir=theirs")
    )
    assert outcome.status == 0, outcome
    compared = api.compare(
        "toy_regression",
        arms={
            "slow": {"algorithm": "fed_avg", "client_learning_rate": 0.01},
            "agnostic_fed_avg": {"algorithm": "agnostic_fed_avg"},
        },
        trials=1,
        rounds=1,
        output_dir="mine",
        **_TOY,
    )
    _same(compared.path, Path("theirs"), "compare.json", "runs/slow/trial_00/run/result.json")
    assert compared.table("loss").splitlines()[2] in outcome.out
    assert len(compared.figure().axes) == 2
    trials = compared.comparison.trials
    assert trials["AgnosticFedAvg"] is trials["agnostic_fed_avg"]
    assert list(trials) == ["slow", "agnostic_fed_avg"]
    with pytest.raises(KeyError, match="expected one of slow, AgnosticFedAvg, found 'fast'"):
        trials["fast"]
    assert (compared.path / "page.json").is_file()
    with pytest.raises(UserError, match="unknown measure 'los': did you mean loss"):
        compared.table("los")


@golden.values
def test_comparisons_that_cannot_be(tmp_path, case):
    found = golden.refusal(api.compare, "toy_regression", **case)
    assert list(tmp_path.iterdir()) == []
    return found


def _of_tff(name: str, num_clients: int) -> Any:
    rng = np.random.default_rng(num_clients)
    clients = {
        f"{name}{k}": OrderedDict(
            x=rng.normal(size=[6, 2]).astype(np.float32), y=rng.integers(2, size=6).astype(np.int32)
        )
        for k in range(num_clients)
    }
    return tff.simulation.datasets.TestClientData(clients)


@pytest.mark.nightly
def test_train_takes_clients_of_tff(tmp_path):
    def domain_of(client_id: str) -> str:
        return "odd" if int(client_id[-1]) % 2 else "even"

    settings: dict[str, Any] = {
        "model": model_file(tmp_path, CLASSIFIER),
        "rounds": 2,
        "clients_per_round": 2,
        "data": "clients.sqlite",
    }
    train, test = _of_tff("a", 4), _of_tff("b", 2)
    of_tff = {"train_data": train, "test_data": test, "domain_of": domain_of}
    run = api.train("custom", output_dir="mine", **settings, **of_tff)
    tff_clients.to_store(Path("other.sqlite"), {"train": train, "test": test}, domain_of)
    assert load_store(Path("clients.sqlite")).digest() == load_store(Path("other.sqlite")).digest()
    assert run.result["domains"].keys() == {"even", "odd"}
    # Goes on with the store that it wrote, whether its clients are given again or not.
    longer = api.train(output_dir="mine", resume=True, rounds=3, data="clients.sqlite", **of_tff)
    whole = api.train("custom", output_dir="whole", **{**settings, "rounds": 3})
    _same(longer.path, whole.path, "metrics.csv", "result.json")
    of_others = {**of_tff, "train_data": [train.create_tf_dataset_for_client("a0")]}
    with pytest.raises(UserError, match=r"clients\.sqlite: expected no file, or a store of just"):
        api.train("custom", **settings, **{**of_others, "domain_of": lambda client: "even"})
    with pytest.raises(UserError, match=r"^data: expected a file to write the clients"):
        api.train("custom", model=settings["model"], **of_tff)
    with pytest.raises(UserError, match=r"^train_data: expected training clients"):
        api.train("custom", test_data=test, **settings)
    assert not list(tmp_path.glob(".*"))
