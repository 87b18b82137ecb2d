"""The command line: `keys`, and what plays with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from plan_runner.errors import PlanError

_PROGRAM = "fleet"
_USAGE_STATUS = 2
_INTERRUPTED_STATUS = 130


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs a command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except PlanError as e:
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        return _USAGE_STATUS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED_STATUS


class _Parser(argparse.ArgumentParser):
    """One whose errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(_USAGE_STATUS, f"error: {message} ({self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Plays an export on machines of their own: a server and nodes, on Flower.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_keys(commands)
    return parser


def _add_keys(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "keys",
        help="make a node's keys, or a server's keys and certificate",
        description=(
            "Makes a node's keys, on its machine; or a server's, from the files NAME.public.toml "
            "that nodes' operators have sent. Nodes need the server's ca.crt and roster.toml."
        ),
        allow_abbrev=False,
    )
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--node", metavar="NAME", help="the node's name in the roster")
    who.add_argument(
        "--server",
        metavar="HOSTS",
        help="names and addresses by which nodes reach the server, with commas between them",
    )
    parser.add_argument(
        "--nodes", metavar="FILES", help="with --server: nodes' files, with commas between them"
    )
    parser.add_argument(
        "--days", type=int, help="with --server: how long the certificate holds (default: 365)"
    )
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True)
    parser.set_defaults(run=_keys)


def _keys(arguments: argparse.Namespace) -> int:
    from plan_runner.fleet import keys

    folder = arguments.output
    if arguments.node is not None:
        for flag in ("nodes", "days"):
            if getattr(arguments, flag) is not None:
                raise PlanError(f"--{flag} has no effect with --node")
        sent = keys.make_node_keys(folder, arguments.node)
        print(f"{folder}: secrets of {arguments.node}, which stay on this machine")
        print(f"{sent}: send this to the server's operator")
        return 0
    if not arguments.nodes:
        raise PlanError(f"--nodes: expected files NAME{keys.PUBLIC} of nodes, found none")
    days = 365 if arguments.days is None else arguments.days
    if days < 1:
        raise PlanError(f"--days: expected at least 1, found {days}")
    nodes = [Path(name) for name in arguments.nodes.split(",")]
    keys.make_server_keys(folder, arguments.server.split(","), nodes, days)
    for name in (keys.AUTHORITY, keys.CERTIFICATE):
        path = folder / name
        print(f"{path}: holds until {keys.expiry(keys.read_certificate(path))}")
    print(f"{folder / keys.ROSTER}: {len(nodes)} nodes")
    print(f"send {keys.AUTHORITY} and {keys.ROSTER} to every node; all else stays here")
    return 0
