"""Rewrites report.html, the report of a run or of a comparison, in its folder.

Example: ./run report --run=runs/digits-agnostic_fed_avg-001
"""

from tff_agnostic.program.studies.report import REPORT_COMMAND

if __name__ == "__main__":
    REPORT_COMMAND.main(__doc__)
