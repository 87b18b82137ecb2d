"""Which tests are in the quick ring, which are usual, by what they reach for their seconds.

    python tools/choose_ring.py choose --measured FOLDER [FOLDER ...] --quick=440 --usual=2600
    python tools/choose_ring.py cheap --measured FOLDER [FOLDER ...]
    python tools/choose_ring.py costly --measured FOLDER [FOLDER ...]
    python tools/choose_ring.py seconds --measured FOLDER [FOLDER ...]

`choose` writes two files of tests, one a line: a file, FILE::FUNCTION with all its cases, or one
case. The quick ring leaves out what tests/rest.txt names, and the usual tests also what
tests/exhaustive.txt names. It takes what costs little, and then what reaches the most new lines for
each processor second, until the seconds of the quick ring are used up; then others alike, until
those of the usual tests are. A second and a third test of a line count, too, but less: what reaches
a line may not look at it. A function that costs more than a little is chosen case by case. A shared
fixture costs once in each ring, with the first test that uses it. What was not measured stays where
it is. Seconds of a later FOLDER replace those of an earlier one, which coverage.py slows.

All of `WHOLE` is usual, at least one case of each function of `PROMISED`, and something of each
file. To add what `tools/plant_faults.py` finds missing, delete its line by hand.

`cheap` moves what costs next to nothing from tests/exhaustive.txt to tests/rest.txt, whatever the
budget: tests of mistakes, by the hundred, whose fixtures the rest makes anyway.

`costly` writes tests/costly.txt: what takes long of the tests that the quick ring leaves out. CI
runs a quarter of these with each commit. README and the tutorials are never among them.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import re
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Seconds of what is always chosen.
_CHEAP_QUICK, _CHEAP_USUAL = 0.1, 1.5
# Seconds of a function from which it is chosen case by case.
_BY_CASE = 0.3
# What the first test of a line counts, the second, and so on. A quick ring that missed seven of 28
# faults reached the lines of all seven, by one to three tests.
_OF_A_LINE = (1.0, 0.5, 0.25)
# What the project promises with every commit. All of the pages' commands and of the folders of
# earlier releases:
WHOLE = ("tests/docs/", "tests/releases/")
# A case at least of numbers against the papers' transcriptions, solvers and TFF; that nothing
# leaves secure sums, and what privacy costs; plans bit for bit; runs that go on; the set-up. That
# other tests reach a line, too, does not show that it is right.
PROMISED = (
    "tests/aggregations/",
    "tests/algorithms/",
    "tests/boosting/",
    "tests/computations/",
    "tests/deployment/",
    "tests/domain_weights/",
    "tests/models/",
    "tests/plan_runner/",
    "tests/privacy/",
    "tests/run/training/",
    "tests/runtimes/test_parity.py",
    "tests/setup/",
)
# Seconds below which a test is usual whatever it reaches: of those of mistakes there are hundreds.
_NEXT_TO_NOTHING = 0.7
# Seconds from which a test of the rest is costly: 113 of 1,696 have more than half of its seconds.
_COSTLY = 5.0
# What a newcomer does first, though it is long.
_EACH_COMMIT = re.compile(r"test_page_runs_from_top_to_bottom\[(README|docs/tutorials/.*)\]")
_REST_HEAD = "Tests that ./run test leaves out, and ./run test --all runs"
_EXHAUSTIVE_HEAD = "Tests that only ./run test --exhaustive runs"
_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

from tests.selection import COSTLY, EXHAUSTIVE, REST, is_left_out, rest  # noqa: E402
from tools import measure_tests  # noqa: E402
from tools.measure_tests import Costs  # noqa: E402


def function_of(test: str) -> str:
    """Returns FILE::FUNCTION of a test."""
    return test.partition("[")[0]


def collected() -> set[str]:
    """Returns the names of all tests that there are, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--exhaustive"]
    done = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def costs_of(measured: Sequence[Path], there: Collection[str]) -> Costs:
    """Returns what was measured in several folders, of each test what the last one says.

    Args:
        measured: The folders.
        there: The tests that there are; others may have been measured.
    """
    found = [measure_tests.costs(folder) for folder in measured]
    tests = {name: of for each in found for name, of in each.tests.items() if name in there}
    fixtures = {name: of for each in found for name, of in each.fixtures.items()}
    uses = {name: of for each in found for name, of in each.uses.items()}
    return Costs(tests, fixtures, uses)


def choices_of(costs: Costs) -> dict[str, str]:
    """Returns what each test is chosen with: its function, or itself if that costs much."""
    of_function: dict[str, float] = collections.defaultdict(float)
    for test, took in costs.tests.items():
        of_function[function_of(test)] += took
    return {
        test: test if of_function[function_of(test)] >= _BY_CASE else function_of(test)
        for test in costs.tests
    }


def costs_of_choices(costs: Costs, choices: Mapping[str, str]) -> Costs:
    """Returns the seconds of each choice, of all its tests, and of shared fixtures."""
    tests: dict[str, float] = collections.defaultdict(float)
    uses: dict[str, set[str]] = collections.defaultdict(set)
    for test, seconds in costs.tests.items():
        tests[choices[test]] += seconds
        uses[choices[test]].update(costs.uses[test])
    named = {name: sorted(names) for name, names in uses.items()}
    return Costs(dict(tests), costs.fixtures, named)


def lines_of_choices(measured: Sequence[Path], choices: Mapping[str, str]) -> dict[str, int]:
    """Returns the lines that each choice reaches: the bits of an integer."""
    import coverage.numbits

    places: dict[tuple[str, int], int] = {}
    found: dict[str, set[int]] = collections.defaultdict(set)
    # A folder may have seconds only.
    for lines_file in filter(Path.exists, map(measure_tests.lines_file, measured)):
        with sqlite3.connect(lines_file) as data:
            rows = data.execute(
                "select context.context, file.path, line_bits.numbits from line_bits"
                " join context on context.id = line_bits.context_id"
                " join file on file.id = line_bits.file_id"
            )
            for test, path, bits in rows:
                if test in choices:
                    file = measure_tests.name_of(path)
                    lines = ((file, n) for n in coverage.numbits.numbits_to_nums(bits))
                    of = found[choices[test]]
                    of.update(places.setdefault(line, len(places)) for line in lines)
    return {name: sum(1 << place for place in of) for name, of in found.items()}


def choose(
    costs: Costs,
    lines: Mapping[str, int],
    budget: float,
    cheap: float,
    first: Collection[str] = (),
    beside: Collection[str] = (),
) -> tuple[set[str], float]:
    """Returns choices, and their seconds: what costs little, and the most new lines for each.

    Args:
        costs: Of each choice.
        lines: What each choice reaches, as bits.
        budget: Most seconds of all that are returned, but for those of `first`.
        cheap: Seconds below which something is chosen whatever it reaches.
        first: What is chosen whatever it costs.
        beside: What another ring has, whose lines are reached already.
    """
    # Lines that one test reaches at least, that two do, and so on.
    reached = [0] * len(_OF_A_LINE)
    made, used, chosen = set[str](), 0.0, set[str]()

    def cost(name: str) -> float:
        new = (fixture for fixture in costs.uses[name] if fixture not in made)
        # What takes no time that can be measured takes some.
        return max(costs.tests[name] + sum(costs.fixtures.get(f, 0.0) for f in new), 0.002)

    def gain(name: str) -> float:
        left, counts = lines.get(name, 0), 0.0
        for worth, by in zip(_OF_A_LINE, reached):
            counts += worth * (left & ~by).bit_count()
            left &= by
        return counts

    def reach(name: str) -> None:
        left = lines.get(name, 0)
        for times, by in enumerate(reached):
            reached[times], left = by | left, by & left

    def take(name: str) -> None:
        nonlocal used
        used += cost(name)
        chosen.add(name)
        made.update(costs.uses[name])
        reach(name)

    for name in beside:
        reach(name)
    for name in first:
        take(name)
    left = set(costs.tests) - chosen

    def place(name: str) -> tuple[bool, float, float, str]:
        of = cost(name)
        return of >= cheap, -gain(name) / of, of, name

    waiting = sorted(map(place, left))
    while waiting:
        *_, name = heapq.heappop(waiting)
        _, _, of, _ = now = place(name)
        # What it gains may have fallen since.
        if waiting and now > waiting[0]:
            heapq.heappush(waiting, now)
        elif used + of <= budget:
            num_made = len(made)
            take(name)
            left.discard(name)
            # Others cost less for each fixture that is made.
            if len(made) > num_made:
                waiting = sorted(map(place, left))
    return chosen, used


def must_be_usual(costs: Costs, of_quick: Collection[str]) -> set[str]:
    """Returns what has to be usual beside the quick ring: of several choices the cheapest."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name in costs.tests:
        groups[name.partition("::")[0]].append(name)
        if name.startswith(PROMISED):
            groups[function_of(name)].append(name)
        if name.startswith(WHOLE):
            groups[name].append(name)
    return {
        min(names, key=lambda name: (costs.tests[name], name))
        for names in groups.values()
        if not any(name in of_quick for name in names)
    }


def entries_of(named: Collection[str], every: Collection[str]) -> list[str]:
    """Returns lines for what is named: a file, or a function, stands for all that it has."""
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    by_function: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(every):
        by_file[name.partition("::")[0]].append(name)
        by_function[function_of(name)].append(name)

    def entry(name: str) -> str:
        for wider, names in ((name.partition("::")[0], by_file), (function_of(name), by_function)):
            if all(other in named for other in names[wider]):
                return wider
        return name

    return sorted({entry(name) for name in named})


def _write(path: Path, head: str, named: Collection[str], choices: Mapping[str, str]) -> None:
    measured = {part for test in choices for part in (test, function_of(test))}
    measured |= {test.partition("::")[0] for test in choices}
    kept = rest(path) - measured
    lines = sorted({*entries_of(named, set(choices.values())), *kept})
    path.write_text("\n".join([f"# {head}; see tools/choose_ring.py.", *lines, ""]))


def write_choice(measured: Sequence[Path], of_tests: Costs, quick: float, usual: float) -> None:
    """Writes which tests the quick ring leaves out, and which are not usual."""
    choices = choices_of(of_tests)
    costs, lines = costs_of_choices(of_tests, choices), lines_of_choices(measured, choices)
    of_quick, seconds = choose(costs, lines, quick, _CHEAP_QUICK)
    # The rest is run by processes of its own: it makes again what fixtures it shares.
    others = {name: costs.tests[name] for name in costs.tests.keys() - of_quick}
    must = must_be_usual(costs, of_quick)
    of_rest, _ = choose(
        costs._replace(tests=others), lines, usual - seconds, _CHEAP_USUAL, must, beside=of_quick
    )
    _write(REST, _REST_HEAD, of_rest, choices)
    _write(EXHAUSTIVE, _EXHAUSTIVE_HEAD, others.keys() - of_rest, choices)


def next_to_nothing(costs: Costs, of_rest: Collection[str], others: Collection[str]) -> set[str]:
    """Returns those of `others` that cost next to nothing beside `of_rest`."""
    made = {fixture for test in of_rest for fixture in costs.uses[test]}

    def cost(test: str) -> float:
        new = (fixture for fixture in costs.uses[test] if fixture not in made)
        return costs.tests[test] + sum(costs.fixtures.get(fixture, 0.0) for fixture in new)

    return {test for test in others if cost(test) < _NEXT_TO_NOTHING}


def add_cheap(costs: Costs) -> None:
    """Moves what costs next to nothing to the usual tests, case by case."""
    unusual, left_out, costly = rest(EXHAUSTIVE), rest(), rest(COSTLY)
    others = {test for test in costs.tests if is_left_out(test, unusual)}
    of_rest = {test for test in costs.tests.keys() - others if is_left_out(test, left_out)}
    # Not beside those that run in turn.
    beside = [test for test in of_rest if not is_left_out(test, costly)]
    cheap = next_to_nothing(costs, beside, others)
    alone = {test: test for test in costs.tests}
    _write(REST, _REST_HEAD, of_rest | cheap, alone)
    _write(EXHAUSTIVE, _EXHAUSTIVE_HEAD, others - cheap, alone)


def is_of_each_commit(test: str) -> bool:
    """Returns whether a test is no costly one, whatever it takes."""
    return _EACH_COMMIT.search(test) is not None


def write_costly(costs: Costs) -> None:
    """Writes which tests of the rest are costly, case by case."""
    unusual, left_out = rest(EXHAUSTIVE), rest()
    named = [
        test
        for test, took in costs.tests.items()
        if took >= _COSTLY
        and is_left_out(test, left_out)
        and not is_left_out(test, unusual)
        and not is_of_each_commit(test)
    ]
    head = "Tests of rest.txt that CI runs in turn, a quarter each commit"
    _write(COSTLY, head, named, {test: test for test in costs.tests})


def main() -> None:
    """Chooses the rings, or prints their seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["choose", "cheap", "costly", "seconds"])
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--quick", type=float, default=440.0)
    parser.add_argument("--usual", type=float, default=2600.0)
    given = parser.parse_args()
    costs = costs_of(given.measured, collected())
    if given.command == "choose":
        write_choice(given.measured, costs, given.quick, given.usual)
    if given.command in ("choose", "costly"):
        write_costly(costs)
    # After it: what runs in turn makes no fixture for others.
    if given.command in ("choose", "cheap"):
        add_cheap(costs)
    unusual, left_out = rest(EXHAUSTIVE), rest()
    usual = {name for name in costs.tests if not is_left_out(name, unusual)}
    quick = {name for name in usual if not is_left_out(name, left_out)}
    rings = {"quick ring": quick, "the rest": usual - quick, "all": costs.tests.keys()}
    for ring, names in rings.items():
        _, seconds = choose(costs, {}, 0.0, 0.0, names)
        print(
            f"{ring}: {len(names)} tests, {seconds:.0f} processor seconds, without the start of "
            "processes"
        )


if __name__ == "__main__":
    main()
