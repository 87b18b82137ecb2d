"""Starts a part of a fleet: `python -m plan_runner.fleet --help`."""

import sys

from plan_runner.fleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
