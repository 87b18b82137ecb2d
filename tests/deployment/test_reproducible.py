"""The same request leads to the same bytes, in any process."""

import os
import subprocess
import sys

import pytest

from tests.binaries.harness import ROOT, tree
from tests.deployment.kinds import make_request
from tests.selection import usually
from tff_agnostic.deployment.export import export

_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tests.deployment.kinds import make_request
from tff_agnostic.deployment.export import export
from tff_agnostic.runtimes.tff import TffRuntime

with TffRuntime() as runtime:
    for kind, profile in (name.split("-") for name in sys.argv[2:]):
        folder = Path(sys.argv[1]) / f"{kind}-{profile}"
        export(folder, make_request(profile, kind=kind), runtime)
"""

# In another order than here: how many came before must not matter.
_EXPORTS = ("logistic-secure", "logistic-daf")


@pytest.fixture(scope="module")
def from_another_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(folder), *_EXPORTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return folder


@pytest.mark.parametrize("name", usually(["logistic-daf"], _EXPORTS))
def test_the_same_bytes(exported, from_another_process, name):
    kind, profile = name.split("-")
    assert tree(exported(profile, kind=kind)) == tree(from_another_process / name)


def test_a_second_export_of_a_process(exported, tff_runtime, tmp_path):
    export(tmp_path / "again", make_request("daf"), tff_runtime)
    assert tree(tmp_path / "again") == tree(exported("daf"))
