"""What writes exports knows algorithms, and neither tasks nor programs."""

import ast
from pathlib import Path

import tff_agnostic.deployment

_ALLOWED = {
    "tff_agnostic.aggregations",
    "tff_agnostic.computations",
    "tff_agnostic.data",
    "tff_agnostic.deployment",
    "tff_agnostic.errors",
    "tff_agnostic.files",
    "tff_agnostic.later",
    "tff_agnostic.folders",
    "tff_agnostic.models",
    "tff_agnostic.report_fields",
    "tff_agnostic.registry",
    "tff_agnostic.runtimes",
    "tff_agnostic.settings",
}


def test_deployment_imports_no_task_and_no_program():
    (folder,) = tff_agnostic.deployment.__path__
    paths = sorted(Path(folder).rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # "from tff_agnostic import x" names its modules after the import.
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            own = [name.split(".")[:2] for name in names if name.startswith("tff_agnostic.")]
            found = {".".join(parts) for parts in own}
            found -= {"tff_agnostic.__version__", "tff_agnostic.versions"}
            assert found <= _ALLOWED, path
