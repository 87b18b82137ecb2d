"""How `run` hands over to a command."""

import json
import os
import pathlib
import signal
import tempfile

import pytest

from tests.processes import is_running
from tests.setup.checkout import Checkout, one_line

pytestmark = pytest.mark.slow


def test_arguments_pass_unharmed(ready):
    arguments = ["--name=a b", "", "*", "$HOME", "it's", '"', "--", "-x", "a\nb", "\\"]
    result = ready.run("train", *arguments)
    assert json.loads(result.stdout)["argv"] == arguments


def test_the_users_folder_the_standard_input_and_the_exit_code_are_kept(ready):
    folder = ready.folder / "my folder"
    folder.mkdir()
    result = ready.run(
        "train", text="lines\nof input\n", cwd=folder, environment={"EXIT_CODE": "77"}
    )
    assert result.returncode == 77
    seen = json.loads(result.stdout)
    assert seen["cwd"] == str(folder)
    assert seen["stdin"] == "lines\nof input\n"


def test_it_works_through_symlinks(ready):
    direct = ready.folder / "tff run"
    direct.symlink_to(ready.root / "run")
    relative = ready.home / "again"
    relative.symlink_to(os.path.relpath(direct, ready.home))
    for link in (direct, relative):
        result = ready.run("train", command=link)
        assert (result.returncode, result.stderr) == (0, "")
    result = ready.run("run", "train", command="bash", cwd=ready.root)
    assert (result.returncode, result.stderr) == (0, "")
    assert ready.installs == 1


def test_signals_reach_the_command(ready):
    process = ready.start("train", environment={"WAIT_FOR_SIGNAL": "1"})
    pid = int(process.stdout.readline())
    # No shell is left: the process that was started passes signals on.
    os.kill(process.pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert not is_running(pid)


def test_the_users_environment_comes_after_ours(ready):
    own = {
        "PYTHONPATH": "/my/modules",
        "PYTHONWARNINGS": "error::UserWarning",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "PYTHONHOME": "/another/python",
    }
    seen = json.loads(ready.run("train", environment=own).stdout)["environment"]
    assert seen["PYTHONPATH"] == f"{ready.root}:/my/modules"
    assert seen["PYTHONWARNINGS"].endswith(",error::UserWarning")
    assert seen["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert seen["PYTHONHOME"] is None
    seen = json.loads(ready.run("train").stdout)["environment"]
    assert seen["PYTHONPATH"] == str(ready.root)
    assert seen["TF_CPP_MIN_LOG_LEVEL"] == "3"


def test_only_the_one_warning_is_hidden(ready):
    (ready.folder / "warns.py").write_text(
        "import warnings\n"
        "warnings.warn('pkg_resources is deprecated as an API. See the docs')\n"
        "warnings.warn('this is the user\\'s own')\n"
    )
    errors = ready.run("python", str(ready.folder / "warns.py")).stderr
    assert "this is the user's own" in errors
    assert "pkg_resources" not in errors


def test_modules_in_the_users_folder_are_not_taken_for_ours(ready):
    folder = ready.folder / "another checkout"
    (folder / "binaries").mkdir(parents=True)
    (folder / "binaries" / "__init__.py").touch()
    (folder / "binaries" / "train.py").write_text("raise SystemExit('the wrong one')\n")
    result = ready.run("train", cwd=folder)
    assert result.returncode == 0, result.stderr


def test_python_is_the_environments_with_its_own_arguments(ready):
    (ready.home / "mine.py").write_text("import os, sys; print(sys.argv, os.getcwd())\n")
    result = ready.run("python", "mine.py", "--flag", "a b")
    assert result.stdout == f"{['mine.py', '--flag', 'a b']} {ready.home}\n", result
    assert ready.run("python", text="raise SystemExit(5)\n").returncode == 5


@pytest.fixture
def with_notebook(ready):
    """A checkout with a tutorial that may not be written to, and a stand-in for JupyterLab."""
    tutorials = ready.root / "docs" / "tutorials"
    tutorials.mkdir(parents=True)
    (tutorials / "own_data.ipynb").write_text("the tutorial")
    (tutorials / "own_data.ipynb").chmod(0o444)
    (ready.root / "jupyterlab.py").write_text("import sys; print(sys.argv[-2:])\n")
    return ready


def test_notebook_opens_a_copy_of_the_tutorial_and_keeps_what_the_user_made_of_it(with_notebook):
    opened = with_notebook.run("notebook", "--no-browser")
    assert opened.stdout == "['runs/notebook/tutorial.ipynb', '--no-browser']\n", opened
    copy = with_notebook.home / "runs" / "notebook" / "tutorial.ipynb"
    assert copy.read_text() == "the tutorial" and copy.stat().st_mode & 0o200
    copy.write_text("the user's")
    assert with_notebook.run("notebook").returncode == 0
    assert copy.read_text() == "the user's"


def test_notebook_opens_the_file_that_is_named(with_notebook):
    opened = with_notebook.run("notebook", "--no-browser", "mine.ipynb")
    assert opened.stdout == "['--no-browser', 'mine.ipynb']\n", opened
    assert list(with_notebook.home.iterdir()) == []


def test_notebook_says_in_one_line_that_a_folder_may_not_be_made(with_notebook):
    (with_notebook.home / "runs").touch()
    refused = with_notebook.run("notebook")
    assert refused.returncode == 1
    said = one_line(refused)
    assert said == f"run: cannot make the folder runs/notebook in {with_notebook.home}"


def test_a_checkout_that_may_not_be_written_to_has_no_caches():
    # Not below pytest's folders, which others may not even enter.
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(pathlib.Path(folder))
        checkout.add_uv()
        checkout.add_python("python3.11")
        checkout.run("setup")
        python = checkout.root / ".venv" / "bin" / "python"
        python.unlink()
        checkout.add_script("shows", 'echo "$RUFF_NO_CACHE|$MYPY_CACHE_DIR|$PYTEST_ADDOPTS"')
        python.symlink_to(checkout.bin / "shows")
        others = {"environment": {"PYTEST_ADDOPTS": "-x"}}
        assert checkout.run("test", "tests", **others).stdout == "||-x\n"
        checkout.folder.chmod(0o755)
        checkout.root.chmod(0o555)
        if os.geteuid() == 0:
            # Who may write everywhere.
            others["user"] = 65534
        tested = checkout.run("test", "tests", **others)
        assert tested.stdout == "true|/dev/null|-p no:cacheprovider -x\n", tested
        lint = checkout.run("lint", **others)
        assert set(lint.stdout.splitlines()) == {"true|/dev/null|-p no:cacheprovider -x"}
        checkout.root.chmod(0o755)


def test_test_runs_pytest_from_the_root(ready):
    (ready.root / "test_it.py").write_text("def test_it(): pass\n\n\ndef test_other(): assert 0\n")
    result = ready.run(
        "test", "test_it.py", "-k", "test_it and not other", "-p", "no:cacheprovider"
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed, 1 deselected" in result.stdout
    assert ready.run("test", "test_it.py", "-p", "no:cacheprovider").returncode == 1
