"""Runs an exported plan on several machines, as a server and nodes on Flower.

`./run fleet` installs the dependencies; outside this repository, install tff-agnostic-fleet.

Example: ./run fleet demo --export=export --clients=clients
"""

import sys

from fleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
