"""Writes digits.csv and linear.py into a folder: a usual, a noisy and a rare domain.

    .venv/bin/python -m benchmarks.hard_domains.digits FOLDER [SEED]

They come from `tff_agnostic.program.experiments.scoreboard_data`. SEED, 0 if not given, is the seed
of the images and of wrong labels. docs/results/excess_losses.md has the commands that use them.
"""

import csv
import sys
from pathlib import Path

from tff_agnostic.program.experiments.scoreboard_data import (
    DIGITS_HEADER,
    DIGITS_MODEL,
    hard_digits,
)


def main(folder: Path, seed: int = 0) -> None:
    """Writes both files."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "digits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(DIGITS_HEADER)
        writer.writerows(hard_digits(seed))
    (folder / "linear.py").write_text(DIGITS_MODEL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
