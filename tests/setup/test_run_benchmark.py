"""`run benchmark`, whose module lies beside the package and not in binaries/."""

import json
import shutil

from tests.setup.checkout import ROOT


def test_it_is_for_work_on_the_code_and_no_binary(bare):
    shutil.copytree(ROOT / "binaries", bare.root / "binaries", dirs_exist_ok=True)
    for_users, _, for_developers = bare.run("help").stdout.partition("For work on the code itself:")
    assert "\n  train " in for_users
    assert "benchmark" not in for_users
    assert "\n  benchmark       Times rounds, " in for_developers


def test_its_arguments_and_its_exit_code_pass_through(ready):
    (ready.root / "benchmarks").mkdir()
    # Without it, an installed package of that name would be found first.
    (ready.root / "benchmarks" / "__init__.py").touch()
    binary = ready.root / "binaries" / "train.py"
    shutil.copy(binary, ready.root / "benchmarks" / "benchmark.py")
    result = ready.run("benchmark", "--peers=none", "a b", environment={"EXIT_CODE": "3"})
    assert result.returncode == 3
    seen = json.loads(result.stdout)
    assert seen["argv"] == ["--peers=none", "a b"]
    assert seen["environment"]["PYTHONPATH"] == str(ready.root)
