"""Which tests are in the quick ring, which are usual, by what they reach for their seconds.

    python tools/choose_ring.py choose --measured FOLDER [FOLDER ...] --quick=480 --usual=1900
    python tools/choose_ring.py seconds --measured FOLDER [FOLDER ...]

`choose` writes two files of tests, one a line: a file, or FILE::FUNCTION with all its parameters.
The quick ring leaves out what tests/rest.txt names, and the usual tests also what
tests/exhaustive.txt names. It takes functions that cost little, and then those that reach the most
new lines for each processor second, until the seconds of the quick ring are used up; then others
alike, until those of the usual tests are. A shared fixture costs once in each ring, with the first
function that uses it. What `PROMISED` names stays usual. To add
what `tools/plant_faults.py` finds missing, delete its line by hand.
"""

from __future__ import annotations

import argparse
import collections
import functools
import operator
import sqlite3
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Seconds of a function that is always chosen: 1,860 of 2,800 functions took less than the first and
# 91 s together, 2,280 less than the second and 388 s (measured).
_CHEAP_QUICK, _CHEAP_USUAL = 0.3, 1.5
# What the project promises with every commit: numbers against the papers' transcriptions, solvers
# and TFF; that nothing leaves secure sums, and what privacy costs; plans bit for bit; runs that go
# on; the pages' commands, the set-up, folders of earlier releases. That other tests reach a line,
# too, does not show that it is right.
PROMISED = (
    "tests/aggregations/",
    "tests/algorithms/",
    "tests/computations/",
    "tests/deployment/",
    "tests/docs/",
    "tests/domain_weights/",
    "tests/plan_runner/",
    "tests/privacy/",
    "tests/releases/",
    "tests/run/training/",
    "tests/runtimes/test_parity.py",
    "tests/setup/",
)
_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

from tests.selection import EXHAUSTIVE, REST, is_left_out, rest  # noqa: E402
from tools import measure_tests  # noqa: E402
from tools.measure_tests import Costs  # noqa: E402


def function_of(test: str) -> str:
    """Returns FILE::FUNCTION of a test."""
    return test.partition("[")[0]


def costs_by_function(measured: Sequence[Path]) -> Costs:
    """Returns the seconds of each function, of all its parameters, and of shared fixtures."""
    tests: dict[str, float] = collections.defaultdict(float)
    uses: dict[str, set[str]] = collections.defaultdict(set)
    fixtures: dict[str, float] = {}
    for folder in measured:
        found = measure_tests.costs(folder)
        for test, seconds in found.tests.items():
            tests[function_of(test)] += seconds
            uses[function_of(test)].update(found.uses[test])
        # A fixture of all tests is made by each process.
        fixtures.update(found.fixtures)
    return Costs(dict(tests), fixtures, {name: sorted(names) for name, names in uses.items()})


def lines_by_function(measured: Sequence[Path]) -> dict[str, int]:
    """Returns the lines that each function reaches: the bits of an integer."""
    import coverage.numbits

    places: dict[tuple[str, int], int] = {}
    found: dict[str, set[int]] = collections.defaultdict(set)
    for folder in measured:
        with sqlite3.connect(measure_tests.lines_file(folder)) as data:
            rows = data.execute(
                "select context.context, file.path, line_bits.numbits from line_bits"
                " join context on context.id = line_bits.context_id"
                " join file on file.id = line_bits.file_id"
            )
            for test, path, bits in rows:
                if test:
                    lines = ((path, n) for n in coverage.numbits.numbits_to_nums(bits))
                    of = found[function_of(test)]
                    of.update(places.setdefault(line, len(places)) for line in lines)
    return {name: sum(1 << place for place in of) for name, of in found.items()}


def choose(
    costs: Costs,
    lines: Mapping[str, int],
    budget: float,
    cheap: float,
    first: Collection[str] = (),
) -> tuple[set[str], float]:
    """Returns functions, and their seconds: what costs little, and the most new lines for each.

    Args:
        costs: Of each function.
        lines: What each function reaches, as bits.
        budget: Most seconds of all that are returned, but for those of `first`.
        cheap: Seconds below which a function is chosen whatever it reaches.
        first: Functions that are chosen whatever they cost.
    """
    reached, made, used = 0, set[str](), 0.0
    chosen = set[str]()

    def cost(name: str) -> float:
        new = (fixture for fixture in costs.uses[name] if fixture not in made)
        # What takes no time that can be measured takes some.
        return max(costs.tests[name] + sum(costs.fixtures.get(f, 0.0) for f in new), 0.002)

    def take(name: str) -> None:
        nonlocal reached, used
        used += cost(name)
        chosen.add(name)
        made.update(costs.uses[name])
        reached |= lines.get(name, 0)

    for name in first:
        take(name)
    left = set(costs.tests) - chosen
    while left:
        by_name = {name: cost(name) for name in left}
        fits = {name: of for name, of in by_name.items() if used + of <= budget}
        if not fits:
            break
        few = [name for name, of in fits.items() if of < cheap]
        best = min(
            few or fits,
            key=lambda n: (-(lines.get(n, 0) & ~reached).bit_count() / fits[n], fits[n], n),
        )
        take(best)
        left.discard(best)
    return chosen, used


def _write(path: Path, head: str, named: Collection[str], every: Collection[str]) -> None:
    # A file of which all functions are named stands for them.
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
    costs, lines = costs_by_function(measured), lines_by_function(measured)
    of_quick, seconds = choose(costs, lines, quick, _CHEAP_QUICK)
    # The rest is run by processes of its own: it makes again what fixtures it shares.
    others = {name: costs.tests[name] for name in costs.tests.keys() - of_quick}
    reached = functools.reduce(operator.or_, (lines.get(name, 0) for name in of_quick), 0)
    new_lines = {name: bits & ~reached for name, bits in lines.items()}
    promised = {name for name in others if name.startswith(PROMISED)}
    of_rest, _ = choose(
        costs._replace(tests=others), new_lines, usual - seconds, _CHEAP_USUAL, promised
    )
    rest_head = "Tests that ./run test leaves out, and ./run test --all runs"
    exhaustive_head = "Tests that only ./run test --exhaustive runs"
    _write(REST, rest_head, of_rest, costs.tests)
    _write(EXHAUSTIVE, exhaustive_head, others.keys() - of_rest, costs.tests)


def main() -> None:
    """Chooses the rings, or prints their seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["choose", "seconds"])
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--quick", type=float, default=480.0)
    parser.add_argument("--usual", type=float, default=1900.0)
    given = parser.parse_args()
    if given.command == "choose":
        write_choice(given.measured, given.quick, given.usual)
    costs = costs_by_function(given.measured)
    unusual, left_out = rest(EXHAUSTIVE), rest()
    usual = {name for name in costs.tests if not is_left_out(name, unusual)}
    quick = {name for name in usual if not is_left_out(name, left_out)}
    rings = {"quick ring": quick, "the rest": usual - quick, "all": costs.tests.keys()}
    for ring, names in rings.items():
        _, seconds = choose(costs, {}, 0.0, 0.0, names)
        print(
            f"{ring}: {len(names)} functions, {seconds:.0f} processor seconds, without the start "
            "of processes"
        )


if __name__ == "__main__":
    main()
