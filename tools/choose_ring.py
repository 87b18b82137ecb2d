"""Which tests are in the quick ring, which are usual, by what they reach for their seconds.

    python tools/choose_ring.py choose --measured FOLDER [FOLDER ...] --quick=560 --usual=2300
    python tools/choose_ring.py seconds --measured FOLDER [FOLDER ...]

`choose` writes two files of tests, one a line: a file, or FILE::FUNCTION with all its parameters.
The quick ring leaves out what tests/rest.txt names, and the usual tests also what
tests/exhaustive.txt names. It takes functions that cost little, and then those that reach the most
new lines for each processor second, until the seconds of the quick ring are used up; then others
alike, until those of the usual tests are. What `PROMISED` names stays usual. To add what
`tools/plant_faults.py` finds missing, delete its line by hand. Put tests that share a costly
fixture into one ring (`tools.measure_tests --in-both-rings`).
"""

from __future__ import annotations

import argparse
import collections
import sqlite3
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Seconds of a function that is always chosen: 1,860 of 2,800 functions took less than the first and
# 91 s together, 2,280 less than the second and 388 s (measured).
_CHEAP_QUICK, _CHEAP_USUAL = 0.3, 1.5
# What the project promises with every commit: the numbers of the papers' transcriptions, the pages'
# commands, the set-up, folders of earlier releases.
PROMISED = ("tests/algorithms/", "tests/docs/", "tests/releases/", "tests/setup/")
_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

from tests.selection import EXHAUSTIVE, REST, is_left_out, rest  # noqa: E402
from tools import measure_tests  # noqa: E402


def function_of(test: str) -> str:
    """Returns FILE::FUNCTION of a test."""
    return test.partition("[")[0]


def seconds_by_function(measured: Sequence[Path]) -> dict[str, float]:
    """Returns processor seconds of each function, of all its parameters."""
    total: dict[str, float] = collections.defaultdict(float)
    for folder in measured:
        for test, seconds in measure_tests.seconds(folder).items():
            total[function_of(test)] += seconds
    return dict(total)


def lines_by_function(measured: Sequence[Path]) -> dict[str, set[tuple[str, int]]]:
    """Returns the lines that each function reaches, as file and number."""
    import coverage.numbits

    found: dict[str, set[tuple[str, int]]] = collections.defaultdict(set)
    for folder in measured:
        with sqlite3.connect(measure_tests.lines_file(folder)) as data:
            rows = data.execute(
                "select context.context, file.path, line_bits.numbits from line_bits"
                " join context on context.id = line_bits.context_id"
                " join file on file.id = line_bits.file_id"
            )
            for test, path, bits in rows:
                if test:
                    lines = coverage.numbits.numbits_to_nums(bits)
                    found[function_of(test)].update((path, line) for line in lines)
    return dict(found)


def choose(
    seconds: Mapping[str, float],
    lines: Mapping[str, set[tuple[str, int]]],
    budget: float,
    cheap: float,
    first: Collection[str] = (),
) -> list[str]:
    """Returns functions: all that take little time, then the most new lines for each second.

    The gain of a function falls as others are taken, so that a gain that was worked out earlier is
    a bound: only the best by that bound is worked out again.

    Args:
        seconds: Processor seconds of each function.
        lines: What each function reaches.
        budget: Most seconds of all that are returned.
        cheap: Seconds below which a function is chosen whatever it reaches.
        first: Functions that are chosen whatever they cost.
    """
    # What takes no time that can be measured takes some.
    cost = {name: max(seconds[name], 0.002) for name in seconds}
    chosen = [name for name in seconds if name in first or seconds[name] < cheap]
    reached = set().union(*(lines.get(name, ()) for name in chosen))
    used = sum(seconds[name] for name in chosen)
    bound = {n: len(lines.get(n, ())) / cost[n] for n in seconds.keys() - set(chosen)}
    while bound:
        name = max(bound, key=lambda n: (bound[n], -cost[n], n))
        gain = len(lines.get(name, set()) - reached) / cost[name]
        if gain < bound[name] and any(b > gain for n, b in bound.items() if n != name):
            bound[name] = gain
            continue
        del bound[name]
        if used + cost[name] <= budget:
            used += cost[name]
            chosen.append(name)
            reached |= lines.get(name, set())
    return chosen


def _write(path: Path, head: str, named: Collection[str], every: Collection[str]) -> None:
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(every):
        by_file[name.partition("::")[0]].append(name)
    lines = [f"# {head}; see tools/choose_ring.py."]
    for file, names in sorted(by_file.items()):
        out = [name for name in names if name in named]
        lines += [file] if len(out) == len(names) else out
    path.write_text("\n".join([*lines, ""]))


def write_choice(measured: Sequence[Path], quick: float, usual: float) -> None:
    """Writes which tests the quick ring leaves out, and which are not usual."""
    seconds, lines = seconds_by_function(measured), lines_by_function(measured)
    promised = {name for name in seconds if name.startswith(PROMISED)}
    of_quick = set(choose(seconds, lines, quick, _CHEAP_QUICK))
    of_usual = set(choose(seconds, lines, usual, _CHEAP_USUAL, of_quick | promised))
    for path, head, named in (
        (REST, "Tests that ./run test leaves out, and ./run test --all runs", of_usual - of_quick),
        (EXHAUSTIVE, "Tests that only ./run test --exhaustive runs", seconds.keys() - of_usual),
    ):
        _write(path, head, named, seconds)


def main() -> None:
    """Chooses the rings, or prints their seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["choose", "seconds"])
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--quick", type=float, default=560.0)
    parser.add_argument("--usual", type=float, default=2300.0)
    given = parser.parse_args()
    if given.command == "choose":
        write_choice(given.measured, given.quick, given.usual)
    seconds = seconds_by_function(given.measured)
    unusual, left_out = rest(EXHAUSTIVE), rest()
    usual = {name for name in seconds if not is_left_out(name, unusual)}
    quick = {name for name in usual if not is_left_out(name, left_out)}
    for ring, names in (("quick ring", quick), ("usual tests", usual), ("all", set(seconds))):
        print(
            f"{ring}: {len(names)} functions, {sum(seconds[name] for name in names):.0f} processor "
            "seconds, without the start of processes"
        )


if __name__ == "__main__":
    main()
