"""Damaged files of a run raise one-line errors that name the file."""

import io
import json
import shutil
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tests.support import golden
from tests.support.runs import train
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.options.tasks import FORMAT
from tff_agnostic.program.reports.run_record import read_run
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.saving.checkpoints import read_checkpoint

_DOMAINS = ("center -1.0", "center -0.4", "center +0.3", "center +0.7", "center +1.0")
_RESULT = {"loss": 1.0, "num_examples": 3}


@pytest.fixture(scope="module")
def trained(cohort_runtime: CohortRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of two rounds."""
    path = tmp_path_factory.mktemp("trained") / "run"
    train(cohort_runtime, path, rounds=2)
    return path


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run's folder, which a test may damage."""
    return RunFolder(Path(shutil.copytree(trained, tmp_path / "run")))


def _error(read: Callable[[], Any]) -> str:
    return golden.refusal(read)


@golden.values
def test_mistyped_setting_names_its_flag(folder, case):
    flag, value = case
    config = read_json(folder.config)
    folder.config.write_text(json.dumps({**config, flag: value}))
    return _error(folder.spec).replace(str(folder.config), "FILE")


@pytest.mark.parametrize("content", [[], "vocabulary", None])
def test_invalid_fingerprint_names_its_file(folder, content):
    config = read_json(folder.config)
    folder.config.write_text(json.dumps({**config, "format": FORMAT}))
    folder.fingerprint.write_text(json.dumps(content))
    message = _error(lambda: folder.saved().check_fingerprint({"vocabulary": "624a37377f06b5af"}))
    assert message.startswith(f"{folder.fingerprint}: expected a JSON object, found ")


@pytest.mark.parametrize("cell", ["9" * 200_000, '"' + "9,\n" * 100_000], ids=["number", "quote"])
def test_error_about_unterminated_metrics_cell_names_the_file(folder, cell):
    header, row, *rows = folder.metrics.read_text().splitlines()
    round_num, _, others = row.split(",", 2)
    folder.metrics.write_text("\n".join([header, f"{round_num},{cell},{others}", *rows]))
    message = _error(lambda: read_history(folder.metrics))
    assert message.startswith(f"{folder.metrics}: expected CSV, found: field larger than")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("[" * 100_000, id="deep"),
        '{"format": 1, "round": Infinity, "leaves": 1}',
        '{"format": 1, "round": -1, "leaves": 1}',
        '{"format": 1, "round": 1, "leaves": 1, "models": {"model": [0]}}',
    ],
)
def test_invalid_checkpoint_header_names_its_file(tmp_path, header):
    content = io.BytesIO()
    np.savez(content, header=np.array(header), leaf_00000=np.zeros([2]))
    path = tmp_path / "round_00000001.npz"
    path.write_bytes(content.getvalue())
    assert _error(lambda: read_checkpoint(path)).startswith(f"{path}: expected a checkpoint, found")


@pytest.mark.parametrize(
    "changed",
    [
        {"domains": {}},
        {"domains": None},
        {"domains": {**dict.fromkeys(_DOMAINS, _RESULT), _DOMAINS[1]: [1]}},
        {"domains": {key: {**_RESULT, "loss": "1"} for key in _DOMAINS}},
        {"overall": {}},
    ],
)
def test_invalid_result_names_its_file(folder, changed):
    result = read_json(folder.result)
    folder.result.write_text(json.dumps({**result, **changed}))
    assert _error(lambda: read_run(folder.path)).startswith(f"{folder.result}: ")
