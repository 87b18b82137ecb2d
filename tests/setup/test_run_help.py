"""What `run` answers to a call for help, and to a mistake."""

import pytest

from tests.setup.checkout import one_line


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_every_command_and_makes_no_environment(bare, arguments):
    result = bare.run(*arguments)
    assert result.returncode == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "train Trains a model" in lines
    assert "compare Compares two runs" in lines
    for name in ("python", "notebook", "setup", "test", "lint", "lock", "build", "bazel"):
        assert any(line.startswith(name + " ") for line in lines)
    assert not any("private" in line or "__init__" in line for line in lines)
    assert not (bare.root / ".venv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("comp", "compare"), ("tset", "test"), ("Train", "train"), ("benchmrk", "benchmark")],
)
def test_an_unknown_command_names_the_nearest(bare, typed, meant):
    result = bare.run(typed, "--flag")
    assert result.returncode == 2
    assert f"no command '{typed}'; did you mean {meant}?" in one_line(result)
    assert not (bare.root / ".venv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["_private", "../run", "*", ""])
def test_a_word_like_no_command_suggests_none(bare, typed):
    result = bare.run(typed)
    assert result.returncode == 2
    assert f"no command '{typed}' (" in one_line(result)


def test_a_command_without_arguments_refuses_them(bare):
    result = bare.run("lint", "--fast")
    assert result.returncode == 2
    assert "'lint' takes no arguments, but got '--fast'" in one_line(result)
