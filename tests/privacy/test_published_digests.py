"""Private runs publish no digest of their data, and reject changed data when they resume."""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from binaries import compare, evaluate, export, report, save_model, train, tune
from tests.privacy.digest_attack import digest_places, published, store_digests
from tests.support.commands import Caller
from tests.support.stores import image, write_store
from tff_agnostic.base.files import read_json
from tff_agnostic.data.clients import clients_digest
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.saving.checkpoints import newest_checkpoint

_STORES = ("with", "without")
_RUN = ("--task=fashion_mnist", "--clients_per_round=4", "--rounds=2", "--worst_min_examples=1")
_PRIVATE = (
    "--privacy=central",
    "--noise_multiplier=1",
    "--cohort_sampling=poisson",
    "--limit_examples=10",
    "--limit_loss=10",
    "--delta=0.001",
)
# Commands that write files, with their flags, by output folder.
_COMMANDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "run": (train, _RUN),
    "report": (report, ("--run=run",)),
    "evaluated": (evaluate, ("--checkpoint=run",)),
    "saved": (save_model, ("--checkpoint=run", "--format=keras")),
    "plan": (export, ("--checkpoint=run",)),
    "compared": (compare, (*_RUN, "--algorithms=agnostic_fed_avg", "--trials=1")),
    "search": (
        tune,
        (
            *_RUN,
            "--algorithms=fed_avg",
            "--search=client_learning_rate=choice:0.1,0.2",
            "--trials=1",
        ),
    ),
}
_WITHOUT_FOLDER = {"report", "evaluated"}


@pytest.fixture(scope="module")
def call(cohort_runtime, tff_runtime) -> Caller:
    return Caller({"cohort": cohort_runtime, "tff": tff_runtime})


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    """A folder with two stores, which differ by one client."""
    folder = tmp_path_factory.mktemp("stores")
    rows = [
        (split, image(f"{label}_{k}", str(label), label, ink=(label + k) / 10))
        for split in ("train", "test", "heldout")
        for label in (0, 6)
        for k in range(4)
    ]
    write_store(folder / "with", rows, "features")
    write_store(folder / "without", rows[1:], "features")
    return folder


def _digests(store: Path) -> set[bytes]:
    task = resolve("fashion_mnist", {}, {}, data=store).load_task()
    parsed = (clients_digest(task.train), clients_digest(task.train, task.test))
    return {*store_digests(store), *map(bytes.fromhex, parsed)}


@pytest.fixture(scope="module")
def digests(stores) -> set[bytes]:
    """Digests that distinguish the two stores."""
    one, other = (_digests(stores / name) for name in _STORES)
    return one ^ other


class Written(NamedTuple):
    """The folder in which the commands of `_COMMANDS` ran, and their printed text."""

    folder: Path
    streams: dict[str, bytes]

    def published(self) -> dict[str, bytes]:
        return {**published(self.folder), **self.streams}


def _written(
    call: Caller, folder: Path, store: Path, *privacy: str, left_out: Collection[str] = ()
) -> Written:
    streams = {}
    for name, (binary, flags) in _COMMANDS.items():
        if name in left_out:
            continue
        data = (f"--data={store}", *privacy) if "--task=fashion_mnist" in flags else ()
        to = () if name in _WITHOUT_FOLDER else (f"--output_dir={name}",)
        outcome = call.ok(binary, *flags, *data, *to)
        streams[f"streams of {name}"] = f"{outcome.out}{outcome.err}".encode()
    return Written(folder, streams)


@pytest.fixture(scope="module")
def private(call, stores, tmp_path_factory) -> Iterator[dict[str, Written]]:
    """Output of private runs with the same seed, by store."""
    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in _STORES:
            patch.chdir(folder := tmp_path_factory.mktemp(name))
            left_out = _WITHOUT_FOLDER if name == "without" else ()
            flags = (*_PRIVATE, "--noise_seed=3")
            outputs[name] = _written(call, folder, stores / name, *flags, left_out=left_out)
        yield outputs


@pytest.mark.slow
def test_private_outputs_contain_no_digest(private, digests):
    for written in private.values():
        assert digest_places(written.published(), digests) == []


@pytest.mark.slow
def test_search_finds_digests_of_public_runs(call, stores, digests, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = _written(call, tmp_path, stores / "with", left_out=["evaluated"])
    places = digest_places(written.published(), digests)
    assert {
        "run/fingerprint.json",
        "run/report.html",
        "run/model/model_card.json",
        "plan/manifest.json",
        "compared/runs/agnostic_fed_avg/trial_00/run/fingerprint.json",
        "search/study.json",
    } <= {*places}


def _entries(folder: Path) -> dict[str, Any]:
    """Returns the entries in published files that describe the data."""

    def read(name: str) -> Any:
        path = folder / name
        # A run without any digest has no fingerprint.json.
        return read_json(path) if path.exists() else {}

    manifest = read("plan/manifest.json")
    synthetic = "conformance/clients/"
    return {
        "run": read("run/fingerprint.json"),
        "card": read("run/model/model_card.json")["trained_with"],
        "manifest": manifest["fingerprint"],
        "clients": {n: entry for n, entry in manifest["files"].items() if synthetic in n},
        "compared": read("compared/runs/agnostic_fed_avg/trial_00/run/fingerprint.json"),
        "search": read("search/study.json")["fingerprint"],
    }


@pytest.mark.slow
def test_data_entries_are_equal_for_both_stores(private):
    one, other = (_entries(written.folder) for written in private.values())
    assert one == other
    assert not any("data" in entry for entry in one.values())


@pytest.mark.slow
def test_keyed_digests_have_fresh_keys(private, call, stores, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = (f"--data={stores / 'with'}", *_PRIVATE, "--noise_seed=3", "--output_dir=run")
    call.ok(train, *_RUN, *flags)
    same = [
        newest_checkpoint(RunFolder(folder / "run").checkpoints).data
        for folder in (private["with"].folder, tmp_path)
    ]
    assert len({*same}) == 2


@pytest.mark.slow
def test_secrets_are_in_owner_only_files(private):
    written = private["with"]
    checkpoint = newest_checkpoint(RunFolder(written.folder / "run").checkpoints)
    (key,) = (a for a in checkpoint.leaves if a.dtype == np.int64 and a.ndim == 1)
    keyed = checkpoint.data.encode().split(b":")
    secrets = (*keyed, key.tobytes(), *(str(number).encode() for number in key))
    for name, content in written.published().items():
        assert not any(secret in content for secret in secrets), name


def _resumed(name: str, store: Path) -> tuple[Any, ...]:
    binary, flags = _COMMANDS[name]
    resumed = ("--resume", f"--output_dir={name}")
    return (binary, *flags, f"--data={store}", *_PRIVATE, "--noise_seed=3", *resumed)


@pytest.mark.slow
def test_private_run_resumes_with_moved_data(private, call, stores, tmp_path, monkeypatch):
    shutil.copytree(private["with"].folder / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stores / "with", "moved")
    call.ok(*_resumed("run", Path("moved")), "--rounds=3")


@pytest.fixture
def replaced(stores) -> Iterator[Path]:
    """Path of the larger store, whose content is the smaller store's during a test."""
    store, kept = stores / "with", stores / "kept"
    store.rename(kept)
    shutil.copytree(stores / "without", store)
    yield store
    shutil.rmtree(store)
    kept.rename(store)


_REFUSED = (
    "expected the examples that the private run there was trained with, found different ones: a "
    "repeated round has the same noise, so that other sums would reveal exact differences"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("run", f"run: {_REFUSED}", id="run"),
        pytest.param(
            "compared", f"compared/runs/agnostic_fed_avg/trial_00/run: {_REFUSED}", id="compared"
        ),
        pytest.param(
            "search", "--output_dir: search holds another study, of different examples", id="search"
        ),
    ],
)
def test_resume_with_other_data_raises(private, call, replaced, monkeypatch, name, expected):
    folder = private["with"].folder
    monkeypatch.chdir(folder)
    assert call.refused(folder, *_resumed(name, replaced)) == expected
