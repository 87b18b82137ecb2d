"""The notebook of the documentation: it runs, prints its stored outputs, and can be opened."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Optional

import nbformat
import pytest

from tests.docs.newcomer import ROOT, environment
from tests.docs.notebooks import executed, progress, stored, texts
from tests.support.processes import wait_until


@pytest.mark.nightly
def test_notebook_prints_its_stored_outputs(tmp_path):
    notebook = executed(tmp_path)
    ran, kept = (
        [cell for cell in one.cells if cell.cell_type == "code"] for one in (notebook, stored())
    )
    assert [texts(cell) for cell in ran] == [texts(cell) for cell in kept]
    assert sum("image/png" in o.get("data", {}) for cell in ran for o in cell.outputs) == 2
    # Progress is drawn as bars instead of log lines.
    bars = "".join(map(progress, ran))
    assert "60/60 [" in bars and "round 60/60" not in bars
    assert (tmp_path / "reader" / "first" / "model" / "model.keras").is_file()
    assert (tmp_path / "reader" / "served" / "model_card.json").is_file()


def test_notebook_has_outputs_without_progress():
    notebook = stored()
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count and not progress(cell)


@pytest.mark.slow
def test_run_notebook_serves_the_tutorial(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    command = [ROOT / "run", "notebook", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(home)) as server:
        try:
            running = home / ".local" / "share" / "jupyter" / "runtime"
            about = running / f"jpserver-{server.pid}.json"
            wait_until(lambda: server.poll() is not None or _served(about) == "notebook")
            assert server.poll() is None
        finally:
            server.send_signal(signal.SIGTERM)


def _served(about: Path) -> Optional[str]:
    """Returns the tutorial's type on the server that a file describes; None until it answers."""
    try:
        server = json.loads(about.read_text())
        address = f"{server['url']}api/contents/tutorial.ipynb?token={server['token']}"
        with urllib.request.urlopen(address) as answer:
            return str(json.load(answer)["type"])
    except (OSError, ValueError):
        return None
