"""What `run` does for a user, on a copy of it whose Python and pip are stand-ins."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[2]

# Only these come from the machine, so that its own Pythons are out of sight.
SYSTEM_TOOLS = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "env",
    "find",
    "flock",
    "ln",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "sha256sum",
    "sleep",
    "tail",
    "uname",
]

# Answers as CPython would while the environment is made (the probe, venv and pip), and is a real
# Python otherwise.
STUB_PYTHON = """#!/usr/bin/env bash
set -e
if [[ $1 == -I ]]; then shift; fi
case "$1 $2" in
  -c*)
    echo "{implementation} {version} {venv} $(readlink -f "$0")"
    exit 0
    ;;
  "-m venv")
    mkdir -p "$3/bin"
    ln -s "$(readlink -f "$0")" "$3/bin/python"
    exit 0
    ;;
  "-m pip")
    echo "$*" >>"$STUB_STATE/pip_calls"
    for word in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo "pip line $word"; done
    if [[ -e $STUB_STATE/pip_fails ]]; then exit 1; fi
    if [[ -e $STUB_STATE/pip_is_slow ]]; then sleep 0.5; fi
    if [[ -e $STUB_STATE/pip_hangs ]]; then
      echo $$ >"$STUB_STATE/pip_pid"
      exec sleep 600
    fi
    exit 0
    ;;
esac
exec "{real_python}" "$@"
"""

BINARY = '''"""{description}."""

import json
import os
import sys

code = int(os.environ.get("EXIT_CODE", "0"))
if os.environ.get("WAIT_FOR_SIGNAL"):
    import signal

    print(os.getpid(), flush=True)
    signal.pause()
keep = ("PYTHONPATH", "PYTHONWARNINGS", "TF_CPP_MIN_LOG_LEVEL", "PYTHONHOME")
print(json.dumps({{
    "name": "{name}",
    "argv": sys.argv[1:],
    "cwd": os.getcwd(),
    "stdin": "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(),
    "environment": {{key: os.environ.get(key) for key in keep}},
}}))
sys.exit(code)
'''


class Checkout:
    """A copy of the set-up's files in a folder of its own, with a PATH of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self.state = folder / "state"
        self.home = folder / "home"
        for made in (self.root, self.bin, self.state, self.home, self.root / "binaries"):
            made.mkdir()
        shutil.copy(ROOT / "run", self.root)
        shutil.copytree(ROOT / "tools", self.root / "tools")
        (self.root / "requirements.lock").write_text("one==1\n")
        (self.root / "binaries" / "__init__.py").touch()
        (self.root / "binaries" / "_private.py").touch()
        for name, description in (("train", "Trains a model"), ("compare", "Compares two runs")):
            text = BINARY.format(name=name, description=description)
            (self.root / "binaries" / f"{name}.py").write_text(text)
        for tool in SYSTEM_TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))

    @property
    def environment(self):
        return {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "STUB_STATE": str(self.state),
        }

    def add_python(self, path, version="3.11", implementation="CPython", venv="venv"):
        if not isinstance(path, pathlib.Path):
            path = self.bin / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            STUB_PYTHON.format(
                version=version,
                implementation=implementation,
                venv=venv,
                real_python=sys.executable,
            )
        )
        path.chmod(0o755)
        return path

    def add_script(self, name, text):
        path = self.bin / name
        if path.is_symlink():
            path.unlink()
        path.write_text("#!/usr/bin/env bash\n" + text)
        path.chmod(0o755)

    def start(self, *arguments, command=None, **options):
        environment = {**self.environment, **options.pop("environment", {})}
        options.setdefault("cwd", self.home)
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(
            [str(command or self.root / "run"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **options,
        )

    def run(self, *arguments, text=None, **options):
        if text is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        output, errors = process.communicate(text)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    @property
    def installs(self):
        calls = self.state / "pip_calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def bare(tmp_path):
    """A checkout on a machine without any Python."""
    checkout = Checkout(tmp_path)
    yield checkout
    pid_file = checkout.state / "pip_pid"
    if pid_file.exists() and is_alive(int(pid_file.read_text())):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@pytest.fixture
def checkout(bare):
    """A checkout on a machine with a Python that fits."""
    bare.add_python("python3.11")
    return bare


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.01)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; nobody may be there to collect it.
    status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] != "Z"


def one_line(result):
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert result.stdout == ""
    return lines[0]


# --- help and mistakes


@pytest.mark.parametrize("arguments", [(), ("help",), ("-h",), ("--help",)])
def test_help_lists_every_command_and_makes_no_environment(bare, arguments):
    result = bare.run(*arguments)
    assert result.returncode == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "train Trains a model" in lines
    assert "compare Compares two runs" in lines
    for name in ("setup", "test", "lint", "lock", "build", "bazel"):
        assert any(line.startswith(name + " ") for line in lines)
    assert not any("private" in line or "__init__" in line for line in lines)
    assert not (bare.root / ".venv").exists()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("trian", "train"), ("comp", "compare"), ("tset", "test"), ("Train", "train")],
)
def test_an_unknown_command_names_the_nearest(bare, typed, meant):
    result = bare.run(typed, "--flag")
    assert result.returncode == 2
    assert f"no command '{typed}'; did you mean {meant}?" in one_line(result)
    assert not (bare.root / ".venv").exists()


@pytest.mark.parametrize("typed", ["xyzzy", "_private", "__init__", "../run", "a b", "*", ""])
def test_a_word_like_no_command_suggests_none(bare, typed):
    result = bare.run(typed)
    assert result.returncode == 2
    assert f"no command '{typed}' (" in one_line(result)


@pytest.mark.parametrize("command", ["setup", "lint", "build"])
def test_commands_without_arguments_refuse_them(bare, command):
    result = bare.run(command, "--fast")
    assert result.returncode == 2
    assert f"'{command}' takes no arguments, but got '--fast'" in one_line(result)


# --- finding a Python


def test_no_python_at_all(bare):
    result = bare.run("setup")
    assert result.returncode == 2
    line = one_line(result)
    assert "needs CPython 3.9, 3.10 or 3.11" in line
    assert "found: none" in line
    assert "TFF_AGNOSTIC_PYTHON" in line


def test_only_pythons_that_do_not_fit(bare):
    bare.add_python("python3", "3.12")
    bare.add_python("python", "3.9", implementation="PyPy")
    bare.add_python("python3.10", "3.10", venv="bare")
    bare.add_script("python3.11", "echo 'the launcher has no such version' >&2\nexit 127\n")
    result = bare.run("train")
    assert result.returncode == 2
    line = one_line(result)
    assert "python3 (CPython 3.12)" in line
    assert "python (PyPy 3.9)" in line
    assert "python3.10 (CPython 3.10 without its venv and ensurepip modules)" in line
    assert "python3.11 (does not run)" in line
    assert not (bare.root / ".venv").exists()


def test_a_launcher_that_fails_is_passed_over(bare):
    bare.add_script("python3.11", "exit 127\n")
    bare.add_python("python3.10", "3.10")
    result = bare.run("setup")
    assert result.returncode == 0
    assert "CPython 3.10" in one_line(result)


def test_a_python_in_no_path_but_a_version_manager_is_found(bare):
    bare.add_python(bare.home / ".pyenv/versions/3.10.13/bin/python", "3.10")
    result = bare.run("setup")
    assert result.returncode == 0
    assert "CPython 3.10" in one_line(result)


def test_the_python_asked_for_is_the_one_used(checkout):
    asked = checkout.add_python(checkout.folder / "other python" / "python", "3.9")
    result = checkout.run("setup", environment={"TFF_AGNOSTIC_PYTHON": str(asked)})
    assert result.returncode == 0
    assert "CPython 3.9" in one_line(result)
    assert (checkout.root / ".venv/bin/python").resolve() == asked


def test_a_python_asked_for_that_does_not_fit_is_not_replaced_by_another(checkout):
    asked = checkout.add_python(checkout.folder / "new" / "python", "3.13")
    result = checkout.run("setup", environment={"TFF_AGNOSTIC_PYTHON": str(asked)})
    assert result.returncode == 2
    assert f"TFF_AGNOSTIC_PYTHON is {asked} (CPython 3.13)" in one_line(result)
    assert checkout.installs == 0


def test_another_python_asked_for_later_makes_the_environment_again(checkout):
    checkout.run("setup")
    asked = checkout.add_python(checkout.folder / "other" / "python", "3.9")
    environment = {"TFF_AGNOSTIC_PYTHON": str(asked)}
    result = checkout.run("setup", environment=environment)
    assert "TFF_AGNOSTIC_PYTHON has changed" in one_line(result)
    assert checkout.run("setup", environment=environment).stderr == ""
    assert checkout.installs == 2


def test_the_same_python_by_another_name_changes_nothing(checkout):
    checkout.run("setup")
    # A launcher is no symlink: only running it tells what is behind it.
    checkout.add_script("python3", f'exec "{checkout.bin}/python3.11" "$@"\n')
    result = checkout.run("setup", environment={"TFF_AGNOSTIC_PYTHON": "python3"})
    assert (result.returncode, result.stderr) == (0, "")
    assert checkout.installs == 1


@pytest.mark.parametrize("system", ["Darwin arm64", "Linux aarch64"])
def test_other_platforms_are_refused(checkout, system):
    kernel, machine = system.split()
    checkout.add_script("uname", f"[[ $1 == -s ]] && echo {kernel} || echo {machine}\n")
    result = checkout.run("train")
    assert result.returncode == 2
    line = one_line(result)
    assert "needs Linux x86_64" in line
    assert system in line


# --- making and keeping the environment


def test_first_use_says_one_line_and_later_uses_say_nothing(checkout):
    first = checkout.run("train")
    assert first.returncode == 0
    assert first.stderr.splitlines() == [
        "run: setting up .venv with CPython 3.11 "
        "(first use; takes about 2 minutes on a fast network, once)"
    ]
    assert json.loads(first.stdout)["name"] == "train"
    second = checkout.run("compare")
    assert second.returncode == 0
    assert second.stderr == ""
    assert json.loads(second.stdout)["name"] == "compare"
    assert checkout.installs == 1


def test_pip_is_held_to_the_lock_and_its_hashes(checkout):
    checkout.run("setup")
    call = (checkout.state / "pip_calls").read_text()
    for option in ("--no-deps", "--require-hashes", "--only-binary :all:"):
        assert option in call
    assert f"--requirement {checkout.root}/requirements.lock" in call


def test_a_failed_installation_shows_its_last_lines_and_is_repaired_by_the_next_use(checkout):
    (checkout.state / "pip_fails").touch()
    result = checkout.run("train")
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert "pip line 20" in lines
    assert "pip line 5" not in lines
    assert lines[-1].startswith("run: set-up failed while installing the packages")
    (checkout.state / "pip_fails").unlink()
    result = checkout.run("train")
    assert result.returncode == 0
    assert "an earlier set-up did not finish" in result.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_set_up_ends_pip_and_is_repaired_by_the_next_use(checkout, how):
    (checkout.state / "pip_hangs").touch()
    pid_file = checkout.state / "pip_pid"
    # As a terminal would start it: with the default actions of all signals.
    process = checkout.start("train", restore_signals=True)
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + how
    assert "set-up interrupted; the next use starts it again" in errors
    assert not is_alive(int(pid_file.read_text()))
    (checkout.state / "pip_hangs").unlink()
    (checkout.root / ".venv" / "half").touch()
    result = checkout.run("train")
    assert result.returncode == 0
    assert not (checkout.root / ".venv" / "half").exists()


def test_a_killed_set_up_is_waited_for_and_repaired(checkout):
    (checkout.state / "pip_hangs").touch()
    pid_file = checkout.state / "pip_pid"
    process = checkout.start("train")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    process.kill()
    process.communicate()
    orphan = int(pid_file.read_text())
    (checkout.state / "pip_hangs").unlink()
    following = checkout.start("train")
    assert "another set-up of this checkout is under way" in following.stderr.readline()
    assert checkout.installs == 1
    os.kill(orphan, signal.SIGTERM)
    output, errors = following.communicate()
    assert following.returncode == 0
    assert "an earlier set-up did not finish" in errors
    assert json.loads(output)["name"] == "train"


def test_uses_at_the_same_time_install_once(checkout):
    (checkout.state / "pip_is_slow").touch()
    processes = [checkout.start("train") for _ in range(3)]
    for process in processes:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(output)["name"] == "train"
    assert checkout.installs == 1


def test_a_changed_lock_is_noticed(checkout):
    checkout.run("setup")
    (checkout.root / "requirements.lock").write_text("one==2\n")
    result = checkout.run("setup")
    assert "requirements.lock has changed" in one_line(result)
    assert checkout.run("setup").stderr == ""
    assert checkout.installs == 2


def test_a_moved_checkout_is_noticed(checkout):
    checkout.run("setup")
    checkout.root = checkout.root.rename(checkout.folder / "moved away")
    result = checkout.run("train")
    assert result.returncode == 0
    assert "the checkout has moved" in result.stderr
    assert checkout.installs == 2


def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.run("setup")
    (checkout.bin / "python3.11").unlink()
    checkout.add_python("python3.10", "3.10")
    result = checkout.run("train")
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


# --- handing over


@pytest.fixture
def ready(checkout):
    """A checkout whose environment is made."""
    assert checkout.run("setup").returncode == 0
    return checkout


def test_arguments_pass_unharmed(ready):
    arguments = ["--name=a b", "", "*", "$HOME", "it's", '"', "--", "-x", "a\nb", "\\"]
    result = ready.run("train", *arguments)
    assert json.loads(result.stdout)["argv"] == arguments


def test_the_users_folder_and_standard_input_are_kept(ready):
    folder = ready.folder / "my folder"
    folder.mkdir()
    result = ready.run("train", text="lines\nof input\n", cwd=folder)
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


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_the_exit_code_passes_through(ready, code):
    assert ready.run("train", environment={"EXIT_CODE": str(code)}).returncode == code


def test_signals_reach_the_process_itself(ready):
    process = ready.start("train", environment={"WAIT_FOR_SIGNAL": "1"})
    pid = int(process.stdout.readline())
    os.kill(pid, signal.SIGTERM)
    process.communicate()
    assert pid == process.pid
    assert process.returncode == -signal.SIGTERM


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
    (ready.root / "binaries" / "warns.py").write_text(
        "import warnings\n"
        "warnings.warn('pkg_resources is deprecated as an API. See the docs')\n"
        "warnings.warn('this is the user\\'s own')\n"
    )
    errors = ready.run("warns").stderr
    assert "this is the user's own" in errors
    assert "pkg_resources" not in errors


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons have no option for it")
def test_modules_in_the_users_folder_are_not_taken_for_ours(ready):
    (ready.root / ".venv" / "lib" / "python3.11").mkdir(parents=True)
    folder = ready.folder / "another checkout"
    (folder / "binaries").mkdir(parents=True)
    (folder / "binaries" / "__init__.py").touch()
    (folder / "binaries" / "train.py").write_text("raise SystemExit('the wrong one')\n")
    result = ready.run("train", cwd=folder)
    assert result.returncode == 0, result.stderr


def test_test_runs_pytest_from_the_root(ready):
    (ready.root / "test_it.py").write_text("def test_it(): pass\n\n\ndef test_other(): assert 0\n")
    result = ready.run(
        "test", "test_it.py", "-k", "test_it and not other", "-p", "no:cacheprovider"
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed, 1 deselected" in result.stdout
    assert ready.run("test", "test_it.py", "-p", "no:cacheprovider").returncode == 1


# --- Bazel and CI


FAKE_BAZEL = """
echo "$*" >>"$STUB_STATE/bazel_calls"
for word; do
  case $word in
    help) echo "--host_javabase" && exit ;;
    build) [[ ! -e $STUB_STATE/build_fails ]] || exit 1 ;;
    test) [[ ! -e $STUB_STATE/test_fails ]] || exit 3 ;;
  esac
done
"""


@pytest.fixture
def bazel(tmp_path):
    """A checkout in a path that Bazel can work in, with a stand-in for Bazel."""
    checkout = Checkout(tmp_path)
    checkout.add_python("python3.11")
    checkout.root = checkout.root.rename(tmp_path / "checkout")
    checkout.add_script("bazel", FAKE_BAZEL)
    assert checkout.run("setup").returncode == 0
    return checkout


@pytest.mark.parametrize(("fails", "code"), [(None, 0), ("build", 1), ("test", 1)])
def test_bazel_is_shut_down_whatever_happens(bazel, fails, code):
    if fails:
        (bazel.state / f"{fails}_fails").touch()
    scratch = bazel.folder / "scratch"
    scratch.mkdir()
    result = bazel.run("bazel", environment={"TMPDIR": str(scratch)})
    assert result.returncode == code, result.stderr
    calls = (bazel.state / "bazel_calls").read_text().splitlines()
    assert calls[-1].endswith(" shutdown")
    assert sum(" build " in call and call.endswith(" //...") for call in calls) == 1
    assert sum(call.endswith(" //tests:quick") for call in calls) == (fails != "build")
    assert list(scratch.iterdir()) == []


def test_bazel_tests_the_targets_named(bazel):
    assert bazel.run("bazel", "//tests:a", "//tests:b").returncode == 0
    calls = (bazel.state / "bazel_calls").read_text().splitlines()
    assert any(call.endswith(" //tests:a //tests:b") for call in calls)
    assert not any("quick" in call for call in calls)


def test_a_missing_bazel_is_one_line(bazel):
    (bazel.bin / "bazel").unlink()
    result = bazel.run("bazel")
    assert result.returncode == 2
    assert "bazel-bootstrap" in one_line(result)


def test_a_path_that_bazel_cannot_work_in_is_one_line(ready):
    ready.add_script("bazel", FAKE_BAZEL)
    result = ready.run("bazel")
    assert result.returncode == 2
    assert "Bazel does not work in a path with spaces" in one_line(result)


@pytest.mark.parametrize("fails", [None, "lint", "bazel", "test"])
def test_ci_runs_every_part_and_fails_if_one_does(bazel, fails):
    shutil.copytree(ROOT / ".ci", bazel.root / ".ci")
    (bazel.root / "run").write_text(f'#!/usr/bin/env bash\necho "part $1"\n[[ $1 != "{fails}" ]]\n')
    result = bazel.run(command=bazel.root / ".ci" / "run")
    parts = [line for line in result.stdout.splitlines() if line.startswith("part ")]
    assert parts == ["part setup", "part lint", "part bazel", "part test"]
    assert (result.returncode != 0) == (fails is not None)
