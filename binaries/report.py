"""Writes the report of a run or of a comparison again: report.html in its folder.

Example: ./run report --run=runs/digits-agnostic_fed_avg-001
"""

from collections.abc import Sequence

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.run.process import run_app
from tff_agnostic.settings import path_flag
from tff_agnostic.studies.comparison_page import write_report_again


def define_flags() -> None:
    """Defines the flags of this binary."""
    flags.DEFINE_string("run", None, "Folder of a complete run or comparison.")


def main(argv: Sequence[str]) -> None:
    """Writes the report, and says where it is."""
    del argv
    folder = path_flag("run")
    if folder is None:
        raise UserError("--run: expected the folder of a run or a comparison, found none")
    print(f"report: {write_report_again(folder)}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
