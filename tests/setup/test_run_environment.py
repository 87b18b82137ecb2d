"""How `run` makes the environment, and keeps it whole."""

import json
import os
import re
import shlex
import signal
import site
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.processes import is_running, wait_until
from tests.setup.checkout import ROOT, one_line, told


@pytest.mark.slow
def test_first_use_says_one_line_and_later_uses_say_nothing(checkout):
    first = checkout.run("train")
    assert first.returncode == 0
    assert told(first) == [
        "run: setting up .venv with CPython 3.11 "
        "(first use; takes about 2 minutes on a fast network, once)"
    ]
    assert json.loads(first.stdout)["name"] == "train"
    second = checkout.run("compare")
    assert second.returncode == 0
    assert second.stderr == ""
    assert json.loads(second.stdout)["name"] == "compare"
    assert checkout.installs == 1


@pytest.mark.slow
def test_a_failed_installation_shows_its_last_lines_and_is_repaired_by_the_next_use(checkout):
    (checkout.state / "install_fails").touch()
    result = checkout.run("train")
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert "line 20" in lines
    assert "line 5" not in lines
    assert lines[-1].startswith("run: set-up failed while installing the packages")
    (checkout.state / "install_fails").unlink()
    result = checkout.run("train")
    assert result.returncode == 0
    assert "an earlier set-up did not finish" in result.stderr


def test_a_long_step_says_now_and_then_that_it_goes_on(tmp_path):
    script = f"""
        say() {{ printf 'run: %s\\n' "$*" >&2; }}
        venv={shlex.quote(str(tmp_path))}
        source {shlex.quote(str(ROOT / "tools" / "environment.sh"))}
        setup_step="installing" setup_line_seconds=1
        run_logged bash -c 'sleep 2.5; exit 3'
    """
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    lines = ended.stderr.splitlines()
    assert lines
    assert all(re.fullmatch(r"run: installing, \d+ s so far", line) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_set_up_ends_uv_and_is_repaired_by_the_next_use(checkout, how):
    (checkout.state / "install_hangs").touch()
    pid_file = checkout.state / "install_pid"
    process = checkout.start("train")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + how
    assert "set-up interrupted; the next use starts it again" in errors
    assert not is_running(int(pid_file.read_text()))
    (checkout.state / "install_hangs").unlink()
    (checkout.root / ".venv" / "half").touch()
    result = checkout.run("train")
    assert result.returncode == 0
    assert not (checkout.root / ".venv" / "half").exists()


@pytest.mark.slow
def test_a_killed_set_up_is_waited_for_and_repaired(checkout):
    (checkout.state / "install_hangs").touch()
    pid_file = checkout.state / "install_pid"
    process = checkout.start("train")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    process.kill()
    process.communicate()
    orphan = int(pid_file.read_text())
    (checkout.state / "install_hangs").unlink()
    following = checkout.start("train")
    assert "another set-up of this checkout is under way" in following.stderr.readline()
    assert checkout.installs == 1
    os.kill(orphan, signal.SIGTERM)
    output, errors = following.communicate()
    assert following.returncode == 0
    assert "an earlier set-up did not finish" in errors
    assert json.loads(output)["name"] == "train"


@pytest.mark.slow
def test_uses_at_the_same_time_install_once(checkout):
    (checkout.state / "install_is_slow").touch()
    processes = [checkout.start("train") for _ in range(3)]
    for process in processes:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(output)["name"] == "train"
    assert checkout.installs == 1


@pytest.mark.slow
def test_a_changed_lock_is_noticed(checkout):
    checkout.run("setup")
    (checkout.root / "requirements.lock").write_text("one==2\n")
    result = checkout.run("setup")
    assert "requirements.lock has changed" in one_line(result)
    assert checkout.run("setup").stderr == ""
    assert checkout.installs == 2


@pytest.mark.slow
def test_a_moved_checkout_is_noticed(checkout):
    checkout.run("setup")
    checkout.root = checkout.root.rename(checkout.folder / "moved away")
    result = checkout.run("train")
    assert result.returncode == 0
    assert "the checkout has moved" in result.stderr
    assert checkout.installs == 2


def test_its_python_finds_the_checkout_also_when_that_has_moved(checkout):
    checkout.run("setup")
    for folder in (checkout.root, checkout.folder / "moved away"):
        checkout.root = checkout.root.rename(folder)
        (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
        with mock.patch.object(sys, "path", []):
            site.addsitedir(str(packages))
            assert Path(sys.path[-1]) == folder


@pytest.mark.slow
def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.run("setup")
    (checkout.bin / "python3.11").unlink()
    pyenv = checkout.folder / "pyenv"
    checkout.add_python(pyenv / "versions" / "3.11.9" / "bin" / "python3.11")
    result = checkout.run("train", environment={"PYENV_ROOT": str(pyenv)})
    assert result.returncode == 0
    assert "its Python is gone" in result.stderr


def test_an_environment_that_this_script_did_not_make_is_replaced(checkout):
    (checkout.root / ".venv" / "bin").mkdir(parents=True)
    (checkout.root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    result = checkout.run("setup")
    assert result.returncode == 0
    assert checkout.installs == 1


def test_a_missing_lock_is_one_line(checkout):
    (checkout.root / "requirements.lock").unlink()
    result = checkout.run("setup")
    assert result.returncode == 2
    assert "there is no requirements.lock" in one_line(result)


@pytest.mark.slow
def test_the_platform_of_today_has_an_environment_of_its_own(checkout):
    (checkout.root / "requirements-today.lock").write_text("three==1\n")
    asked = checkout.add_python(checkout.folder / "other" / "python", "3.13")
    today = {"TFF_AGNOSTIC_PLATFORM": "today", "TFF_AGNOSTIC_TODAY_PYTHON": str(asked)}
    first = checkout.run("train", environment=today)
    assert first.stderr.startswith("run: setting up .venv-today with CPython 3.13 (first use;")
    assert json.loads(first.stdout)["name"] == "train"
    assert not (checkout.root / ".venv").exists()
    assert checkout.run("compare", environment=today).stderr == ""
    later = checkout.add_python(checkout.folder / "later" / "python", "3.14")
    (checkout.root / ".venv-today" / ".complete").unlink()
    refused = checkout.run("train", environment={**today, "TFF_AGNOSTIC_TODAY_PYTHON": str(later)})
    assert refused.returncode == 2
    assert one_line(refused) == (
        "run: needs one of CPython 3.13, 3.12, 3.11, as TensorFlow 2.21 does; "
        f"TFF_AGNOSTIC_TODAY_PYTHON is {later} (cpython 3.14)"
    )
    wrong = checkout.run("train", environment={"TFF_AGNOSTIC_PLATFORM": "newest"})
    assert wrong.returncode == 2
    assert one_line(wrong) == (
        "run: TFF_AGNOSTIC_PLATFORM: expected reference or today, found newest"
    )


@pytest.mark.slow
def test_the_fleet_has_an_environment_of_its_own(checkout):
    first = checkout.run("fleet", "demo", "--nodes=4")
    assert first.returncode == 0
    assert first.stderr.startswith("run: setting up .venv-fleet with CPython 3.11 (first use;")
    assert json.loads(first.stdout)["argv"] == ["demo", "--nodes=4"]
    assert not (checkout.root / ".venv").exists()
    assert checkout.run("fleet").stderr == ""
    # Another lock, and another variable for its CPython, of which others fit.
    (checkout.root / "requirements.lock").write_text("one==2\n")
    environment = {"TFF_AGNOSTIC_PYTHON": "python3.9"}
    assert checkout.run("fleet", environment=environment).stderr == ""
    (checkout.root / "plan_runner/fleet/requirements.lock").write_text("two==2\n")
    assert "plan_runner/fleet/requirements.lock has changed" in one_line_of_errors(
        checkout.run("fleet")
    )
    asked = checkout.add_python(checkout.folder / "other" / "python", "3.13")
    environment = {"PLAN_RUNNER_PYTHON": str(asked)}
    made = checkout.run("fleet", environment=environment)
    assert "CPython 3.13 (PLAN_RUNNER_PYTHON has changed" in one_line_of_errors(made)
    refused = checkout.run("fleet", environment={"PLAN_RUNNER_PYTHON": "python3.9"})
    assert refused.returncode == 2
    expected = "needs one of CPython 3.11, 3.12, 3.13, as the lock of the fleet does; PLAN_RUNNER_"
    assert expected in one_line(refused)


def one_line_of_errors(result):
    (line,) = told(result)
    return line
