"""Runs an exported plan on several machines, as a server and nodes on Flower.

./run fleet has an environment for it; another one needs tff-agnostic-plan-runner[flower].

Example: ./run fleet demo --export=export --clients=clients
"""

import sys

from plan_runner.fleet.cli import main


def run_app() -> None:
    """Runs it, and ends the process with its exit status."""
    sys.exit(main())


if __name__ == "__main__":
    run_app()
