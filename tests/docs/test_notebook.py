"""The notebook of the documentation: it runs, prints what it is stored with, and can be opened."""

import json
import signal
import subprocess
import urllib.request

import nbformat

from tests.docs.newcomer import ROOT, environment
from tests.docs.notebooks import executed, progress, stored, texts
from tests.processes import wait_until


def test_the_notebook_prints_what_it_is_stored_with(tmp_path):
    notebook = executed(tmp_path)
    ran, kept = (
        [cell for cell in one.cells if cell.cell_type == "code"] for one in (notebook, stored())
    )
    assert [texts(cell) for cell in ran] == [texts(cell) for cell in kept]
    assert sum("image/png" in o.get("data", {}) for cell in ran for o in cell.outputs) == 2
    # A bar, and not the lines of a log.
    bars = "".join(map(progress, ran))
    assert "60/60 [" in bars and "round 60/60" not in bars
    assert (tmp_path / "reader" / "first" / "model" / "model.keras").is_file()
    assert (tmp_path / "reader" / "served" / "model_card.json").is_file()


def test_the_notebook_is_stored_with_outputs_and_without_progress():
    notebook = stored()
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count and not progress(cell)


def test_run_notebook_serves_it(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    command = [ROOT / "run", "notebook", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(home)) as server:
        try:
            running = home / ".local" / "share" / "jupyter" / "runtime"
            # Written last.
            page = running / f"jpserver-{server.pid}-open.html"
            wait_until(lambda: page.exists() or server.poll() is not None)
            about = json.loads((running / f"jpserver-{server.pid}.json").read_text())
            address = f"{about['url']}api/contents/tutorial.ipynb?token={about['token']}"
            with urllib.request.urlopen(address) as answer:
                assert json.load(answer)["type"] == "notebook"
        finally:
            server.send_signal(signal.SIGTERM)
