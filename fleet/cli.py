"""The command line of a fleet: keys, server, node, demo."""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fleet.errors import ERRORS
from plan_runner.errors import PlanError, counted
from plan_runner.terminal import escape_output

_PROGRAM = "fleet"
_USAGE_STATUS = 2
# What shells add to a signal's number.
_SIGNAL_STATUS = 128
_PORT = 8443
# What writing to a full disk raises, without the file's name.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs a command; returns the exit status."""
    escape_output()
    arguments = _parser().parse_args(argv)
    from fleet.launch import Terminated, ended_by_signals

    try:
        with ended_by_signals():
            return int(arguments.run(arguments))
    except ERRORS as e:
        return _failed(str(e))
    except OSError as e:
        if e.filename is None and e.errno not in _NO_ROOM:
            raise
        where = "" if e.filename is None else f"{e.filename}: "
        return _failed(f"{where}cannot read or write ({e.strerror})")
    except Terminated as e:
        print("interrupted", file=sys.stderr)
        return _SIGNAL_STATUS + e.number


def _failed(words: str) -> int:
    print(f"error: {' '.join(words.split())}", file=sys.stderr)
    return _USAGE_STATUS


class _Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, and the other commands' flag for all help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.add_argument("--helpfull", action="help", help=argparse.SUPPRESS)

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(_USAGE_STATUS, f"error: {message} ({self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Runs an export on several machines: a server and nodes, on Flower.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_keys(commands)
    _add_server(commands)
    _add_node(commands)
    _add_demo(commands)
    return parser


def _add_keys(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "keys",
        help="make a node's keys, or a server's keys and certificate",
        description=(
            "Makes a node's keys, on its machine; or a server's, from the files NAME.public.toml "
            "that nodes' operators have sent. Nodes need the server's ca.crt and roster.toml."
        ),
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
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, required=True, help="new folder of the keys"
    )
    parser.set_defaults(run=_keys)


def _keys(arguments: argparse.Namespace) -> int:
    from fleet import keys

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
    print(f"{folder / keys.ROSTER}: {counted(len(nodes), 'node')}")
    print(f"send {keys.AUTHORITY} and {keys.ROSTER} to every node; all else stays here")
    return 0


def _add_server(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("server", help="run rounds with the connected nodes")
    parser.add_argument(
        "--keys", metavar="FOLDER", type=Path, required=True, help="the server's keys"
    )
    parser.add_argument(
        "--settings", metavar="FILE", type=Path, required=True, help="the file server.toml"
    )
    parser.add_argument(
        "--rounds", type=int, required=True, help="rounds of training, earlier ones included"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where nodes reach it (%(default)s)")
    parser.add_argument("--port", type=int, default=_PORT, help="the server's port (%(default)s)")
    parser.add_argument(
        "--open_to_network",
        action="store_true",
        help="let --host be other than loopback: nodes' requests alone pass the filter there",
    )
    parser.add_argument(
        "--superlink_port",
        type=int,
        default=8000,
        help="of its SuperLink, on loopback (%(default)s)",
    )
    _add_weaker_privacy(parser)
    parser.set_defaults(run=_server)


def _add_weaker_privacy(parser: _Parser) -> None:
    parser.add_argument(
        "--weaker_privacy",
        action="store_true",
        help=(
            "run rounds that the plan's epsilon does not cover, such as other cohorts or more "
            "rounds; the server states their epsilon"
        ),
    )


def _server(arguments: argparse.Namespace) -> int:
    from fleet.launch import LOOPBACK, run_server

    if arguments.host not in LOOPBACK and not arguments.open_to_network:
        raise PlanError(
            f"--host: expected loopback, found {arguments.host}, which others may reach: "
            "--open_to_network allows it"
        )
    if arguments.rounds < 1:
        raise PlanError(f"--rounds: expected at least 1, found {arguments.rounds}")
    run_server(
        arguments.keys,
        arguments.settings,
        arguments.rounds,
        (arguments.host, arguments.port),
        arguments.superlink_port,
        _tell,
        arguments.weaker_privacy,
    )
    return 0


def _add_node(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("node", help="run as one client")
    parser.add_argument(
        "--keys", metavar="FOLDER", type=Path, required=True, help="the node's keys"
    )
    parser.add_argument(
        "--settings", metavar="FILE", type=Path, required=True, help="the file node.toml"
    )
    parser.add_argument("--server", metavar="HOST:PORT", required=True, help="the server's address")
    parser.add_argument(
        "--port", type=int, default=8101, help="of its SuperNode, on loopback (%(default)s)"
    )
    parser.set_defaults(run=_node)


def _node(arguments: argparse.Namespace) -> int:
    from fleet.launch import run_node

    host, _, port = arguments.server.rpartition(":")
    if not host or not port.isdigit():
        raise PlanError(f"--server: expected HOST:PORT, found {arguments.server}")
    server = host, int(port)
    run_node(arguments.keys, arguments.settings, server, arguments.port, _tell)
    return 0


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="run a fleet on this machine, every part as a process",
    )
    parser.add_argument(
        "--export", metavar="FOLDER", type=Path, required=True, help="folder of the export"
    )
    parser.add_argument(
        "--clients",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="folder with a file NAME.tfrecord per client",
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        help="client store from which nodes read these clients",
    )
    parser.add_argument(
        "--nodes", type=int, default=4, help="number of nodes, at least 3 (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (%(default)s)")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="new folder to keep; none by default"
    )
    _add_weaker_privacy(parser)
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from fleet.demo import demo

    if arguments.nodes < 3 or arguments.rounds < 1:
        raise PlanError("expected at least 3 --nodes and 1 of --rounds")
    with contextlib.ExitStack() as stack:
        folder = arguments.output
        if folder is None:
            within = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet_"))
            folder = Path(within) / "demo"
        elif folder.exists():
            raise PlanError(f"--output: expected a new folder, found {folder}")
        demo(
            arguments.export,
            arguments.clients,
            arguments.nodes,
            arguments.rounds,
            folder.resolve(),
            _tell,
            arguments.store,
            arguments.weaker_privacy,
        )
    return 0


def _tell(text: str) -> None:
    print(text, flush=True)
