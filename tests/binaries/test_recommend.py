"""`recommend`: searches a portfolio, and chooses a method by validation clients."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hard_domains.digits import DIGITS_MODEL
from binaries import recommend
from tests.support.commands import Caller
from tests.support.pages import page_blocks
from tests.support.stores import write_store
from tff_agnostic.base.files import read_json
from tff_agnostic.data.store_format import Record
from tff_agnostic.program.studies import recommend as recommend_command

# Logistic regression on four hidden units.
_MODEL = DIGITS_MODEL.replace(
    "tf.keras.Input(data.x_shape),", "tf.keras.Input(data.x_shape), tf.keras.layers.Dense(4),"
)


@pytest.fixture(scope="module")
def call(streaming_runtime) -> Caller:
    """A caller on a runtime that traces fast."""
    return Caller({"cohort": streaming_runtime})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> tuple[str, ...]:
    """Flags of a task with a large and a small domain, which have opposite labels."""
    path, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    counts = {"train": (24, 3), "heldout": (20, 20), "test": (10, 10)}
    records = []
    for split, domain_counts in counts.items():
        for domain, count, sign in zip(("large", "small"), domain_counts, (1, -1)):
            for k in range(12 * count):
                label = int(rng.integers(2))
                x = np.array([sign * (2 * label - 1), sign], np.float32)
                x += rng.normal(scale=0.1, size=2).astype(np.float32)
                client = f"{domain}_{split}_{k % count:02d}"
                records.append((split, Record(client, domain, {"x": x, "label": label})))
    (path / "two_layers.py").write_text(_MODEL)
    store = write_store(path / "s.sqlite", records, "features", class_names=("no", "yes"))
    flags = (f"--data={store}", f"--model={path / 'two_layers.py'}", "--clients_per_round=6")
    return ("--task=custom", *flags, "--rounds=2", "--evaluate_every=2")


_ROWS = ("fed_avg", "excess_own", "last_layer")
_SHORT = ("--tries=1", "--trials=2", "--portfolio=excess_own,last_layer")


def _content(path: Path):
    return read_json(path / "recommendation.json")


@pytest.fixture(scope="module")
def recommended(call: Caller, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("recommended") / "runs"
    outcome = call.ok(recommend, *data, *_SHORT, f"--output_dir={path}")
    return path, outcome.out


@pytest.mark.nightly
def test_result_files_have_choice_and_commands(recommended, data):
    path, out = recommended
    content = _content(path)
    assert "20 validation clients judge (held-out clients, half of them" in out
    assert content["sentences"][0].startswith("Recommended: ")
    for line in (*content["sentences"], *content["verdict"]):
        assert line in out
    tables = {block["table"]: block["rows"] for block in page_blocks(path) if "table" in block}
    assert len(tables["On the validation clients"]) == len(_ROWS)
    tried = {row[0] for row in tables["One trial of each setting"]}
    assert tried == {f"{row}-1" for row in _ROWS}
    for row in _ROWS:
        assert len(list((path / "runs" / "search" / f"{row}-1").glob("trial_*"))) == 2
    assert (path / content["model"]).is_dir()
    # The printed command has complete paths.
    command = content["command"]
    assert command[:3] == ["./run", "train", "--task=custom"]
    assert data[1] in command and data[2] in command
    # The verdict has the recommended model's accuracy on the test clients.
    final = read_json(path / "final" / "compare.json")
    first = final[content["choice"]]["(overall)"]["accuracy"]["trials"][0]
    assert f"{100 * first:.1f}% on all examples" in content["verdict"][0]
    # The search evaluates held-out clients.
    searched = path / "runs/search/fed_avg-1/trial_00/run"
    assert "heldout/loss/small" in (searched / "metrics.csv").read_text()
    # Half of the held-out clients decide when reference runs stop, and the others validate.
    result = read_json(searched / "result.json")
    assert result["overall"]["over_clients"]["loss"]["num_clients"] == 20


@pytest.mark.nightly
def test_killed_search_resumes_with_equal_choice(call: Caller, data, recommended, tmp_path):
    path, _ = recommended
    folder = tmp_path / "runs"
    shutil.copytree(path, folder)
    # Restore the files after a kill in the second trial of a method.
    killed = folder / "runs/search/excess_own-1/trial_01/run"
    for file in (killed / "result.json", folder / "recommendation.json", folder / "report.html"):
        file.unlink()
    shutil.rmtree(folder / "final")
    flags = (*data, *_SHORT, f"--output_dir={folder}")
    call.ok(recommend, *flags, "--resume")
    assert _content(folder) == {**_content(path), "command": _content(folder)["command"]}
    message = call.refused(tmp_path, recommend, *flags, "--portfolio=uniform", "--resume")
    assert "holds another study: portfolio was ['fed_avg', 'excess_own', 'last" in message
    message = call(recommend, *flags, "--hours=1e-9", "--resume").error
    assert message.startswith("--hours: expected ")


@pytest.mark.nightly
def test_chosen_last_layer_trains_in_two_stages(
    call: Caller, data, recommended, tmp_path, monkeypatch
):
    folder = tmp_path / "runs"
    shutil.copytree(recommended[0], folder)
    flags = (*data, *_SHORT, f"--output_dir={folder}", "--resume")
    monkeypatch.setattr(recommend_command, "chosen", lambda *_: "last_layer")
    call.ok(recommend, *flags, "--objective=worst")
    content = _content(folder)
    assert content["choice"] == "last_layer"
    first, second = (
        read_json(folder / f"final/runs/{entry}/trial_00/run/config.json")
        for entry in ("first_stages/last_layer", "last_layer")
    )
    assert (first["algorithm"], first["rounds"], second["rounds"]) == ("fed_avg", 1, 1)
    assert content["command"][:2] == ["./run", "compare"]
    assert {"--arms=last_layer", "--algorithms=last_layer"} & {*content["command"]}


@pytest.mark.slow
def test_missing_test_clients_raise_user_error(call: Caller, data, tmp_path):
    records = [
        (split, Record(f"{split}_{k}", domain, {"x": np.zeros(2, np.float32), "label": k % 2}))
        for split in ("train", "heldout")
        for domain in "ab"
        for k in range(4)
    ]
    store = write_store(tmp_path / "s.sqlite", records, "features", class_names=("no", "yes"))
    flags = (data[0], f"--data={store}", *data[2:], "--portfolio=uniform")
    message = call.refused(tmp_path, recommend, *flags, f"--output_dir={tmp_path / 'runs'}")
    assert "expected clients in split test" in message


@pytest.mark.slow
def test_diverged_fed_avg_raises_user_error(call: Caller, data, tmp_path):
    flags = ("--portfolio=fed_avg", "--tries=1", "--client_learning_rate=3e38", "--trials=1")
    message = call(recommend, *data, *flags, f"--output_dir={tmp_path / 'runs'}").error
    assert message.startswith("expected a result of FedAvg, with which other methods are compared")
    assert "diverged" in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--portfolio=best",), "--portfolio: expected some of fed_avg, "),
        (("--portfolio=uniform,uniform",), "--portfolio: expected different methods, found"),
        (("--average_may_lose=much",), "--average_may_lose: expected a share from 0 to 1"),
        (("--privacy=central", "--noise_multiplier=1"), "--privacy=central: expected none"),
        (("--test_split=test",), "expected the held-out split, found the test split"),
        (("--objective=regret", "--worst_min_examples=999"), "expected a domain with --worst_min"),
    ],
)
def test_invalid_flags_raise_user_error(call: Caller, data, tmp_path, flags, expected):
    message = call.refused(tmp_path, recommend, *data, *flags, f"--output_dir={tmp_path / 'runs'}")
    assert expected in message
