"""What a shell offers while a command line is typed."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.setup.checkout import ROOT
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.commands import command
from tff_agnostic.run.completion import script
from tff_agnostic.tasks.registry import TASKS

_IN_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
eval "$(complete -p tff-agnostic | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Its own words for candidates are made of what this prints, whatever is set in the user's shell.
_IN_ZSH = """
autoload -Uz compinit; compinit -D -u
setopt no_unset ksh_arrays glob_subst
source "$1"; shift
_tff_agnostic_complete "$@"
"""


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """Returns what bash offers for the last of some words, as bash parts them."""
    file = tmp_path_factory.mktemp("completion") / "bash"
    file.write_text(script("bash"))
    # No Python, no package: nothing but the shell and its usual tools.
    environment = {"PATH": os.defpath}

    def offered(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", _IN_BASH, "bash", file, "./run", *words],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_commands_and_values(offered):
    assert offered("tr") == ["train"]
    assert {"train", "run_plan", "completion", "notebook"} < set(offered(""))
    assert offered("train", "--task", "=") == list(TASKS)
    assert offered("train", "--task", "=", "dig") == ["digits"]
    assert offered("train", "--task", "dig") == ["digits"]
    assert offered("train", "--xla", "=", "t") == ["true"]
    assert offered("train", "--rounds", "=") == []
    assert offered("compare", "--algorithms", "=", "term,q") == ["term,q_ffl"]
    assert offered("train", "--nox") == ["--noxla"]
    assert offered("train", "--output_dir", "") == offered("python", "") == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train", []),
        ("train", ["--task=digits", "--algorithm=fed_boost", "--aggregation=secure"]),
        ("train", ["--task=adult", "--privacy=distributed", "--runtime=ray"]),
        ("train", ["--task=digits", "--update_aggregator=dp"]),
        ("compare", ["--task=digits", "--algorithms=q_ffl,term"]),
        ("compare", ["--arms=mild=q_ffl:q=0.1;delta_fl"]),
        ("tune", ["--task=toy_regression", "--algorithms=fed_prox,delta_fl"]),
        ("evaluate", ["--task=digits"]),
        ("import_state", ["--plan=export"]),
        ("import_data", []),
        ("privacy", []),
    ],
)
def test_the_flags_are_those_of_help(offered, monkeypatch, name, arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    page = command(name).help_text("", "")
    groups = re.findall(r"^\S.* \[(\w+)\]$", page, re.MULTILINE)
    in_full = "\n".join(command(name).help_text("", group) for group in groups)
    of_help = set(re.findall(r"^  --(?:\[no\])?(\w+):", in_full, re.MULTILINE))
    found = {flag.strip("-=") for flag in offered(name, *arguments, "--")}
    assert found - of_help == {"help", "helpfull", "flagfile"}
    assert of_help <= found


def test_a_file_of_the_users_may_have_any_algorithms_flags(offered):
    found = offered("train", "--algorithm=mine.py", "--")
    assert {"--q=", "--client_learning_rate="} < set(found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_offers_the_same(offered, tmp_path):
    file = tmp_path / "zsh"
    file.write_text(script("zsh"))
    lines = ("tr", "train --algorithm=q_ffl --q", "tune --task d", "compare --algorithms=q_ffl -")
    for words in map(str.split, lines):
        done = subprocess.run(
            ["zsh", "-f", "-c", _IN_ZSH, "zsh", file, "tff-agnostic", *words],
            check=True,
            capture_output=True,
            text=True,
        )
        assert (done.stdout.split(), done.stderr) == (offered(*words), "")


@pytest.mark.parametrize("arguments", [[], ["fish"], ["bash", "zsh"]])
def test_other_shells_are_refused(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "binaries", "completion", *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "bash" in line and "zsh" in line


def test_every_algorithm_is_offered(offered):
    assert offered("train", "--algorithm", "=") == list(ALGORITHMS)
