"""Command: `python -m tools.moves check`, `apply` or `table` (before and now, for CHANGELOG.md)."""

import argparse
import sys
from pathlib import Path

from tools.moves import check, layout, table
from tools.moves.apply import apply
from tools.moves.code import MoveError, Mover


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.moves", description=__doc__)
    parser.add_argument("command", choices=("check", "apply", "table"))
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout")
    given = parser.parse_args()
    moves = layout.load()
    if given.command == "table":
        print("\n".join(table.rows(moves)))
        return 0
    tree = check.tree_of(given.root)
    mover = Mover(tree, moves)
    found = list(check.problems(mover, tree, moves))
    print(check.report(mover, tree, moves))
    print("\n".join(f"joined: {line}" for line in dict.fromkeys(mover.joined)))
    found += dict.fromkeys(mover.problems)
    if found:
        print("\n".join(found), file=sys.stderr)
        print(f"{len(found)} lines of problems", file=sys.stderr)
        return 1
    if given.command == "apply":
        try:
            apply(given.root, tree, moves, mover)
        except MoveError as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
