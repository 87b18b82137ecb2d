"""Which Python `run` makes the environment with."""

from tests.setup.checkout import one_line


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


def test_other_platforms_are_refused(checkout):
    system = "Linux aarch64"
    checkout.add_script("uname", "[[ $1 == -s ]] && echo Linux || echo aarch64\n")
    result = checkout.run("train")
    assert result.returncode == 2
    line = one_line(result)
    assert "needs Linux x86_64" in line
    assert system in line
