"""The notebook of the documentation, run as a newcomer runs it.

`./run python -m tests.docs.notebooks` runs it and stores it with its outputs.
"""

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.docs.newcomer import PYTHON, ROOT, environment

NOTEBOOK = ROOT / "docs" / "tutorials" / "own_data.ipynb"


def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def executed(folder: Path) -> Any:
    """Runs the notebook in the new folder `folder`/reader, and returns it with outputs."""
    notebook, reader, home = stored(), folder / "reader", folder / "home"
    for made in (reader, home):
        made.mkdir()
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = str(PYTHON)
    manager.connection_file = str(home / "connection.json")
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=170,
        record_timing=False,
        resources={"metadata": {"path": str(reader)}},
    )
    client.execute(env=environment(home))
    return notebook


def texts(cell: Any) -> list[str]:
    """Returns a cell's standard output and its results as text, without its progress."""
    printed = [
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    ]
    return ["".join(printed), *(_shown(o) for o in cell.outputs if o.output_type != "stream")]


def _shown(output: Any) -> str:
    return f"{sorted(output.data)}: {output.data['text/plain']}"


def progress(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.get("name") == "stderr")


def store(notebook: Any) -> None:
    """Writes the notebook with the outputs of a run, without its progress."""
    kept = stored()
    for cell, ran in zip(kept.cells, notebook.cells):
        if cell.cell_type == "code":
            printed, *_ = texts(ran)
            stream = [nbformat.v4.new_output("stream", text=printed)] if printed else []
            cell.outputs = stream + [o for o in ran.outputs if o.output_type != "stream"]
            cell.execution_count = ran.execution_count
    nbformat.write(kept, NOTEBOOK)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        store(executed(Path(scratch)))
