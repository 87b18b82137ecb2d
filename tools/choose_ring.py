"""Which tests are in the quick ring, and a choice of them by what they reach for their seconds.

    python tools/choose_ring.py choose --measured FOLDER [FOLDER ...] --seconds=480
    python tools/choose_ring.py seconds --measured FOLDER [FOLDER ...]

The quick ring is all usual tests but those that tests/rest.txt names, one a line: a file, or
FILE::FUNCTION with all its parameters. `choose` writes that file. It takes functions that cost next
to nothing, and then those that reach the most new lines for each processor second, until the
seconds are used up. To add what `tools/plant_faults.py` finds missing, delete its line by hand. Put
tests that share a costly fixture into one ring (`tools.measure_tests --in-both-rings`).
"""

from __future__ import annotations

import argparse
import collections
import sqlite3
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Seconds of a function that is always chosen.
_CHEAP = 0.1
_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

from tests.selection import REST, is_left_out, rest  # noqa: E402
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
    seconds: Mapping[str, float], lines: Mapping[str, set[tuple[str, int]]], budget: float
) -> list[str]:
    """Returns functions: all that take next to no time, then the most new lines for each second.

    The gain of a function falls as others are taken, so that a gain that was worked out earlier is
    a bound: only the best by that bound is worked out again.
    """
    reached: set[tuple[str, int]] = set()
    # What takes no time that can be measured takes some.
    cost = {name: max(seconds[name], 0.002) for name in seconds}
    chosen = [name for name in seconds if seconds[name] < _CHEAP]
    for name in chosen:
        reached |= lines.get(name, set())
    used = sum(seconds[name] for name in chosen)
    bound = {n: len(lines.get(n, ())) / cost[n] for n in seconds if seconds[n] >= _CHEAP}
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


def _written(left_out: Collection[str], every: Collection[str]) -> str:
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(every):
        by_file[name.partition("::")[0]].append(name)
    lines = [
        "# Tests that ./run test leaves out, and ./run test --all runs; see tools/choose_ring.py.",
    ]
    for file, names in sorted(by_file.items()):
        out = [name for name in names if name in left_out]
        lines += [file] if len(out) == len(names) else out
    return "\n".join([*lines, ""])


def main() -> None:
    """Chooses the quick ring, or prints its seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["choose", "seconds"])
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    given = parser.parse_args()
    seconds = seconds_by_function(given.measured)
    if given.command == "choose":
        chosen = set(choose(seconds, lines_by_function(given.measured), given.seconds))
        REST.write_text(_written(set(seconds) - chosen, seconds))
    entries = rest()
    quick = {name for name in seconds if not is_left_out(name, entries)}
    print(
        f"quick ring: {len(quick)} of {len(seconds)} functions, "
        f"{sum(seconds[name] for name in quick):.0f} of {sum(seconds.values()):.0f} processor "
        "seconds, without the start of its processes"
    )


if __name__ == "__main__":
    main()
