"""`run_plan` needs only TensorFlow and the packages that TensorFlow requires."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.plan_runner.exports import write_export
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX
from tests.plan_runner.plans import daf_plan

ROOT = Path(__file__).parents[2]

# A sitecustomize module that makes every process of a command fail to import FOREIGN.
_BLOCKING = """
import sys

names = set(FOREIGN)

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"{name} is not TensorFlow's", name=name)

sys.meta_path.insert(0, Refuse())
"""


def brought_by_tensorflow(installed) -> set[str]:
    """Returns the names of TensorFlow and its dependencies."""
    names, waiting = set(), ["tensorflow"]
    while waiting:
        name = waiting.pop()
        if name in names or name not in installed:
            continue
        names.add(name)
        for text in installed[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return names


def installed_modules(distribution) -> set[str]:
    tops = {path.parts[0] for path in distribution.files or [] if path.suffix in (".py", ".so")}
    return {top.partition(".")[0] for top in tops} - {"..", "__pycache__"}


@pytest.fixture(scope="module")
def foreign() -> list[str]:
    """Top-level modules that are installed, but are not TensorFlow's or its dependencies'."""
    installed = {
        canonicalize_name(one.metadata["Name"]): one for one in importlib.metadata.distributions()
    }
    needed = brought_by_tensorflow(installed)
    allowed = {name for key in needed for name in installed_modules(installed[key])}
    others = {
        name
        for key, value in installed.items()
        if key not in needed
        for name in installed_modules(value)
    }
    names = sorted((others | {"tff_agnostic", "tests"}) - allowed)
    assert {"tensorflow_federated", "ray", "sklearn", "pyarrow", "jax", "tabulate", "tqdm"} <= {
        *names
    }
    return names


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
def test_copied_plan_runner_verifies_with_tensorflow_only(foreign, tmp_path):
    export = write_export(tmp_path / "export", daf_plan(), "daf")
    shutil.copytree(ROOT / "plan_runner", tmp_path / "plan_runner")
    arguments = [f"--plan={export}", "--verify", *TRUST_WITHOUT_SANDBOX]
    result = alone("plan_runner", [*foreign, "binaries"], *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\nverified bit for bit: 3 rounds, 12 tensors; not run: " in result.stdout
    foreign_one = alone("tabulate", foreign, cwd=tmp_path / "plan_runner")
    assert "tabulate is not TensorFlow's" in foreign_one.stderr
