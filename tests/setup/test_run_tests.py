"""How tests are run: the rings, and what is left when a run of them is ended."""

import ast
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import default_signals, is_running
from tests.selection import (
    COSTLY,
    COSTLY_SHARES,
    EACH_COMMIT,
    EXHAUSTIVE,
    FILE_SHARES,
    REST,
    SHARES,
    is_in_share,
    is_left_out,
    is_of_commit,
    lost_cases,
    rest,
)
from tests.setup.checkout import ROOT
from tools import choose_ring
from tools.measure_tests import Costs, processor_seconds

_RUN_TESTS = ROOT / "tools" / "run_tests"


_LISTS = [REST, COSTLY, EXHAUSTIVE, EACH_COMMIT]


@pytest.mark.parametrize("path", _LISTS, ids=lambda path: path.stem)
def test_tests_that_are_listed_are_there(path: Path) -> None:
    functions: dict[str, set[str]] = {}
    # A case of long values has an id.
    assert not [entry[:200] for entry in rest(path) if len(entry) > 500]
    for entry in rest(path):
        file, _, function = entry.partition("[")[0].partition("::")
        assert (ROOT / file).is_file(), f"{path.name}: {entry}"
        if function and file not in functions:
            body = ast.parse((ROOT / file).read_text()).body
            functions[file] = {n.name for n in body if isinstance(n, ast.FunctionDef)}
            classes = (n for n in body if isinstance(n, ast.ClassDef))
            functions[file] |= {
                f"{of.name}::{n.name}" for of in classes for n in of.body if hasattr(n, "name")
            }
        assert not function or function in functions[file], f"{path.name}: {entry}"


def test_a_test_is_left_out_by_its_file_its_function_or_itself():
    entries = {"tests/a.py", "tests/b.py::test_one", "tests/c.py::test_one[x-#1]"}
    assert is_left_out("tests/a.py::test_two[x]", entries)
    assert is_left_out("tests/b.py::test_one[x::y]", entries)
    assert is_left_out("tests/c.py::test_one[x-#1]", entries)
    assert not is_left_out("tests/b.py::test_one_more", entries)
    assert not is_left_out("tests/c.py::test_one[x-#2]", entries)


def test_a_case_that_is_listed_and_not_there_is_lost():
    tests = {"tests/a.py::test_one[x]", "tests/a.py::test_one[y]", "tests/b.py::test_two"}
    entries = {"tests/a.py::test_one[x]", "tests/a.py::test_one[z]", "tests/a.py"}
    # Its function is in another part.
    entries |= {"tests/c.py::test_three[z]"}
    assert lost_cases(entries, tests) == ["tests/a.py::test_one[z]"]


def test_costly_tests_are_of_the_rest_and_readme_is_none_of_them():
    assert all(is_left_out(entry, rest()) for entry in rest(COSTLY))
    assert not [entry for entry in rest(COSTLY) if choose_ring.is_of_each_commit(entry)]
    readme = "tests/docs/test_docs.py::test_page_runs_from_top_to_bottom[README]"
    assert choose_ring.is_of_each_commit(readme)
    assert is_left_out(readme, rest())


def test_what_the_project_promises_is_usual():
    """`entries_of` writes the name of the function if all its cases are left out."""
    entries = rest(EXHAUSTIVE)
    assert not [entry for entry in entries if entry.startswith(choose_ring.WHOLE)]
    promised = [entry for entry in entries if entry.startswith(choose_ring.PROMISED)]
    assert not [entry for entry in promised if "[" not in entry]


def test_of_each_file_and_promised_function_the_cheapest_stays_usual():
    tests = {
        "tests/setup/test_a.py::test_one[x]": 9.0,
        "tests/setup/test_a.py::test_one[y]": 4.0,
        "tests/setup/test_a.py::test_two": 7.0,
        "tests/setup/test_b.py::test_three[x]": 5.0,
        "tests/setup/test_b.py::test_three[y]": 6.0,
        "tests/metrics/test_c.py::test_four": 1.0,
        "tests/metrics/test_c.py::test_five": 2.0,
        "tests/docs/test_d.py::test_six[x]": 3.0,
        "tests/docs/test_d.py::test_six[y]": 5.0,
    }
    of_quick = {"tests/setup/test_b.py::test_three[y]"}
    assert choose_ring.must_be_usual(Costs(tests, {}, {}), of_quick) == {
        "tests/setup/test_a.py::test_one[y]",
        "tests/setup/test_a.py::test_two",
        "tests/metrics/test_c.py::test_four",
        "tests/docs/test_d.py::test_six[x]",
        "tests/docs/test_d.py::test_six[y]",
    }


def test_what_is_left_out_is_written_in_few_lines():
    every = ["a.py::one[x]", "a.py::one[y]", "a.py::two", "b.py::one", "b.py::two[x::y]"]
    assert choose_ring.entries_of(["a.py::one[x]", "b.py::one"], every) == [
        "a.py::one[x]",
        "b.py::one",
    ]
    assert choose_ring.entries_of(every[1:], every) == ["a.py::one[y]", "a.py::two", "b.py"]
    assert choose_ring.entries_of(every[:2], every) == ["a.py::one"]


@pytest.mark.parametrize(
    ("budget", "first", "chosen", "seconds"),
    [
        # The fixture of a and b is too dear.
        (8.0, (), {"c", "d"}, 5.2),
        # It costs once; then b is cheap, and d, which reaches nothing new, was so from the start.
        (16.0, (), {"a", "b", "c", "d"}, 15.4),
        # What has to be there comes first, whatever it costs.
        (8.0, ("a",), {"a"}, 10.1),
    ],
)
def test_a_ring_has_what_reaches_most_for_its_seconds(budget, first, chosen, seconds):
    costs = Costs(
        tests={"a": 0.1, "b": 0.1, "c": 5.0, "d": 0.2},
        fixtures={"made": 10.0},
        uses={"a": ["made"], "b": ["made"], "c": [], "d": []},
    )
    lines = {"a": 0b1, "b": 0b10, "c": 0b1100, "d": 0b1000}
    found, used = choose_ring.choose(costs, lines, budget, 0.3, first)
    assert found == chosen
    assert used == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("beside", "chosen"),
    [
        # Three lines for the second time count more than a new one,
        (("a",), "b"),
        # and for the third time less.
        (("a", "b"), "d"),
        ((), "b"),
    ],
)
def test_a_second_test_of_a_line_counts_half_and_a_third_a_quarter(beside, chosen):
    lines = {"a": 0b111, "b": 0b111, "c": 0b111, "d": 0b1000}
    tests = {name: 1.0 for name in lines if name not in beside and name != "a"}
    costs = Costs(tests, fixtures={}, uses={name: [] for name in lines})
    assert choose_ring.choose(costs, lines, 1.0, 0.3, beside=beside) == ({chosen}, 1.0)


def test_seconds_of_a_later_folder_replace_those_of_an_earlier_one(tmp_path: Path):
    name = "tests/setup/test_run_tests.py::test_one"
    for folder, seconds in (("lines", 9.0), ("seconds", 2.0)):
        (tmp_path / folder).mkdir()
        written = {"tests": {name: seconds}, "fixtures": {"made": seconds}, "uses": {name: []}}
        (tmp_path / folder / "seconds.json").write_text(json.dumps(written))
    costs = choose_ring.costs_of([tmp_path / "lines", tmp_path / "seconds"], {name})
    assert costs == Costs({name: 2.0}, {"made": 2.0}, {name: []})


def test_what_costs_next_to_nothing_beside_the_rest_is_usual():
    costs = Costs(
        tests={"a": 3.0, "b": 0.1, "c": 0.1, "d": 0.9},
        fixtures={"made": 10.0, "other": 10.0},
        uses={"a": ["made"], "b": ["made"], "c": ["other"], "d": []},
    )
    assert choose_ring.next_to_nothing(costs, ["a"], ["b", "c", "d"]) == {"b"}


_BUSY = """
import subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, *sys.orig_argv[1:], "inner"], stdin=0)
while time.process_time() < 0.4: pass
print("done", flush=True)
sys.stdin.read()
"""


def test_seconds_of_processes_that_still_run_count():
    before = processor_seconds()
    command = [sys.executable, "-c", _BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"done\n"] * 2
        assert processor_seconds() - before > 0.7


def test_shares_of_the_exhaustive_tests_are_disjoint_and_make_up_the_whole():
    tests = {f"tests/a.py::test_of_every[{number}]" for number in range(600)}
    commits = (hashlib.sha1(str(number).encode()).hexdigest() for number in range(400))
    shares = {frozenset(t for t in tests if is_in_share(t, commit)) for commit in commits}
    assert len(shares) == SHARES
    assert sum(len(share) for share in shares) == len(tests)
    assert frozenset().union(*shares) == tests


def test_shares_of_the_files_are_disjoint_and_make_up_the_whole():
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py")}
    commits = (hashlib.sha1(str(number).encode()).hexdigest() for number in range(1000))
    shares = {frozenset(f for f in files if is_of_commit(f, commit, ())) for commit in commits}
    assert len(shares) == FILE_SHARES
    assert sum(len(share) for share in shares) == len(files)
    assert frozenset().union(*shares) == files


def test_what_each_commit_runs_is_in_every_share_of_the_files():
    entries = {"tests/a.py", "tests/b.py::test_one"}
    listed = ("tests/a.py", "tests/a.py::test_two[x]", "tests/b.py", "tests/b.py::test_one[x]")
    others = ("tests/b.py::test_two", "tests/c.py", "tests/c.py::test_one")
    commit = next(
        f"{n}"
        for n in range(100)
        if not any(is_of_commit(t, f"{n}", ()) for t in (*listed, *others))
    )
    assert all(is_of_commit(test, commit, entries) for test in listed)
    assert not any(is_of_commit(test, commit, entries) for test in others)


_SOME_EXHAUSTIVE = """
import pytest
from tests.selection import usually

@pytest.mark.parametrize("number", usually([0], range(60)))
def test_of_every(number):
    pass
"""


def test_a_share_has_exhaustive_tests_only(tmp_path):
    (tmp_path / "test_some.py").write_text(_SOME_EXHAUSTIVE)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def chosen(*arguments):
        python = ROOT / ".venv" / "bin" / "python"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        # A folder: a file that is named is never passed over.
        done = subprocess.run(
            [*command, *arguments, "."],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        return {line for line in done.stdout.splitlines() if "::" in line}

    every = chosen("--exhaustive")
    assert len(every) == 60
    unusual = every - chosen()
    # Some shares have none of so few.
    commit = next(f"{n}" for n in range(1000) if any(is_in_share(t, f"{n}") for t in unusual))
    expected = {test for test in unusual if is_in_share(test, commit)}
    assert chosen(f"--exhaustive-share={commit}") == expected
    assert 0 < len(expected) < 20
    (tmp_path / "costly.txt").write_text("test_some.py::test_of_every\n")
    conftest = tmp_path / "conftest.py"
    here = 'COSTLY = Path(__file__).with_name("costly.txt")'
    conftest.write_text(conftest.read_text().replace("\n_RINGS", f"\n{here}\n_RINGS"))
    of_commit = {test for test in every if is_in_share(test, "a commit", COSTLY_SHARES)}
    assert chosen("--exhaustive", "--costly-share=a commit") == of_commit
    assert 8 < len(of_commit) < 25
    has_file = {is_of_commit("test_some.py", f"{n}", ()): n for n in range(1000)}
    assert chosen(f"--file-share={has_file[True]}") == chosen()
    assert not chosen(f"--file-share={has_file[False]}")


_STUBBORN = """
import signal, subprocess, sys, time
from pathlib import Path

def test_that_does_not_end():
    ignore = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True, env={})
    Path("child").write_text(str(child.pid))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_no_process(tmp_path: Path, sent: signal.Signals) -> None:
    """Not even one that ignores Ctrl-C, nor one in a session of its own."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "run_tests").write_text(_RUN_TESTS.read_text())
    python = ROOT / ".venv" / "bin" / "python"
    (tmp_path / "run").write_text(
        "#!/usr/bin/env bash\n[[ $2 == tests/data* ]] || exit 5\n"
        f"exec {shlex.quote(str(python))} -m pytest -q -p no:cacheprovider test_slow.py\n"
    )
    (tmp_path / "test_slow.py").write_text(_STUBBORN)
    for name in ("run", "tools/run_tests"):
        (tmp_path / name).chmod(0o755)
    # In a session of its own, as a terminal gives one: the signal reaches no other test.
    with default_signals():
        process = subprocess.Popen(
            [tmp_path / "tools" / "run_tests"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child = tmp_path / "child"
    while not (child.exists() and child.read_text()):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    os.kill(process.pid, sent)
    assert process.wait(timeout=60) == 128 + sent
    assert not is_running(int(child.read_text()))
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "test_slow.py" not in listed.stdout
