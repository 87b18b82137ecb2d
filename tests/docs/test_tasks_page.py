"""Every task has a place in the reference, and the defaults that stand there."""

from pathlib import Path

import pytest
from tabulate import tabulate

from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.runs.spec import resolve

_REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGE, DEFAULTS_PAGE = _REFERENCE / "tasks.md", _REFERENCE / "task_defaults.md"
_SETTINGS = {
    "rounds": "rounds",
    "clients": "clients_per_round",
    "batch": "client_batch_size",
    "epochs": "client_epochs",
    "client lr": "client_learning_rate",
    "server": "server_optimizer",
    "server lr": "server_learning_rate",
    "lambda lr": "lambda_learning_rate",
    "window": "window",
    "divided by": "client_normalizer",
}


def _table() -> str:
    rows = []
    for name in DEFAULTS:
        settings = resolve(name, {}, {}).settings()
        values = [settings[setting] for setting in _SETTINGS.values()]
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        rows.append([f"`{name}`", *cells])
    return tabulate(rows, headers=["task", *_SETTINGS], tablefmt="github", disable_numparse=True)


def test_page_has_the_defaults_of_tasks():
    assert _table() in DEFAULTS_PAGE.read_text(), f"expected in {DEFAULTS_PAGE.name}:\n{_table()}"


@pytest.mark.slow
def test_page_explains_every_task():
    text = PAGE.read_text()
    for name in DEFAULTS:
        assert f"### `{name}`" in text and f"| [`{name}`](#{name}) |" in text
