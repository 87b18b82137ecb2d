"""`run_plan` needs nothing but TensorFlow, and what that brings."""

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX

ROOT = Path(__file__).parents[2]

# In every process of a command, which Python has import it: importing any of the names fails.
_BLOCKING = """
import sys

names = set(FOREIGN)

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"{name} is not TensorFlow's", name=name)

sys.meta_path.insert(0, Refuse())
"""


def distributions():
    return {canonicalize_name(d.metadata["Name"]): d for d in importlib.metadata.distributions()}


def brought_by_tensorflow(installed) -> set[str]:
    """The distributions that installing TensorFlow alone installs."""
    found, left = set(), ["tensorflow"]
    while left:
        name = left.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        for text in installed[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(requirement.name))
    return found


def modules_of(distribution) -> set[str]:
    """The names at the top that a distribution can be imported by."""
    tops = {path.parts[0] for path in distribution.files or [] if path.suffix in (".py", ".so")}
    return {top.partition(".")[0] for top in tops} - {"..", "__pycache__"}


@pytest.fixture(scope="module")
def foreign() -> list[str]:
    """Every name that could be imported here, but not where there is only TensorFlow."""
    installed = distributions()
    own = brought_by_tensorflow(installed)
    allowed = {name for key in own for name in modules_of(installed[key])}
    others = {
        name for key, value in installed.items() if key not in own for name in modules_of(value)
    }
    names = sorted((others | {"tff_agnostic", "tests"}) - allowed)
    assert {"tensorflow_federated", "ray", "sklearn", "pyarrow", "jax", "tabulate", "tqdm"} <= {
        *names
    }
    return names


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    from tests.plan_runner.exports import write_export
    from tests.plan_runner.plans import daf_plan

    return write_export(tmp_path_factory.mktemp("plan") / "export", daf_plan(), "daf")


def alone(module, foreign, *arguments, cwd):
    (cwd / "sitecustomize").mkdir()
    text = _BLOCKING.replace("FOREIGN", repr(foreign))
    (cwd / "sitecustomize" / "sitecustomize.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(cwd / "sitecustomize"),
            "PYTHONWARNINGS": "ignore",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.nightly
def test_an_export_is_verified_with_tensorflow_and_the_copied_folder_alone(
    foreign, export, tmp_path
):
    shutil.copytree(ROOT / "plan_runner", tmp_path / "plan_runner")
    arguments = [f"--plan={export}", "--verify", *TRUST_WITHOUT_SANDBOX]
    result = alone("plan_runner", [*foreign, "binaries"], *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\nverified bit for bit: 3 rounds, 12 tensors; not run: " in result.stdout
    foreign_one = alone("tabulate", foreign, cwd=tmp_path / "plan_runner")
    assert "tabulate is not TensorFlow's" in foreign_one.stderr


@pytest.mark.slow
def test_nothing_else_is_imported_anywhere():
    # TensorFlow brings flatbuffers; secure aggregation and the fleet, which no plan is played with,
    # have extras.
    allowed = {"absl", "flatbuffers", "google", "numpy", "plan_runner", "tensorflow"}
    of_extras = {
        "secure_aggregation/primitives.py": {"cryptography"},
        "fleet/flower.py": {"cryptography", "flwr", "httpx"},
        "fleet/keys.py": {"cryptography"},
        "fleet/proxy.py": {"httpx", "starlette", "uvicorn"},
    }
    allowed |= sys.stdlib_module_names
    for path in [*(ROOT / "plan_runner").rglob("*.py"), ROOT / "binaries" / "run_plan.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module]
            place = path.relative_to(ROOT).as_posix().removeprefix("plan_runner/")
            for name in names:
                assert name.partition(".")[0] in allowed | of_extras.get(place, set()), (
                    f"{path}:{node.lineno}: {name}"
                )
