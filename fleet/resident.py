"""A node's resident process, which answers the messages of its SuperNode."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from pathlib import Path

from fleet.errors import ERRORS
from fleet.node import Node
from fleet.settings import read_node_settings
from plan_runner.terminal import escape_output

READY = "node: ready"


def main() -> int:
    """Answers messages until a signal ends this process."""
    escape_output()
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--settings", type=Path, required=True, help="the node's node.toml")
    parser.add_argument("--address", required=True, help="HOST:PORT of the SuperNode")
    parser.add_argument("--secret", type=Path, required=True, help="the SuperNode's secret")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with contextlib.closing(Node(read_node_settings(arguments.settings))) as node:
            from fleet import flower

            print(READY, flush=True)
            flower.serve(node.answer, arguments.address, arguments.secret.read_bytes())
    except ERRORS as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
