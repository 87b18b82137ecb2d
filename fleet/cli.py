"""The command line of a fleet: keys, server, node, demo."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fleet.errors import ERRORS
from plan_runner.errors import PlanError, counted
from plan_runner.exit_status import ERROR_STATUS, run_command
from plan_runner.terminal import escape_output


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs a command, and returns its exit status."""
    escape_output()
    arguments = _parser().parse_args(argv)
    return run_command(lambda: arguments.run(arguments), ERRORS)


class _Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors and the flag --helpfull."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.add_argument("--helpfull", action="help", help=argparse.SUPPRESS)

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(ERROR_STATUS, f"error: {message} ({self.prog} --help)\n")

    def add_path(self, flag: str, metavar: str, description: str) -> None:
        self.add_argument(flag, metavar=metavar, type=Path, required=True, help=description)

    def add_weaker_privacy(self) -> None:
        self.add_argument(
            "--weaker_privacy",
            action="store_true",
            help="run rounds that the plan's epsilon does not cover, such as other cohorts or more "
            "rounds; the server states their epsilon",
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fleet",
        description="Runs an export on several machines: a server and nodes, on Flower.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    keys = commands.add_parser(
        "keys",
        help="make a node's keys, or a server's keys and certificate",
        description="Makes a node's keys, on its machine; or a server's, from the files "
        "NAME.public.toml of nodes' operators. Nodes need the server's ca.crt and roster.toml.",
    )
    who = keys.add_mutually_exclusive_group(required=True)
    who.add_argument("--node", metavar="NAME", help="the node's name in the roster")
    who.add_argument(
        "--server",
        metavar="HOSTS",
        help="names and addresses by which nodes reach the server, separated by commas",
    )
    keys.add_argument(
        "--nodes", metavar="FILES", help="with --server: nodes' files, separated by commas"
    )
    keys.add_argument(
        "--days", type=int, help="with --server: validity of the certificate (default: 365)"
    )
    keys.add_path("--output", "FOLDER", "new folder of the keys")
    keys.set_defaults(run=_keys)

    server = commands.add_parser("server", help="run rounds with the connected nodes")
    server.add_path("--keys", "FOLDER", "the server's keys")
    server.add_path("--settings", "FILE", "the file server.toml")
    server.add_argument(
        "--rounds", type=int, required=True, help="rounds of training, including earlier ones"
    )
    server.add_argument("--host", default="127.0.0.1", help="address for nodes (%(default)s)")
    server.add_argument("--port", type=int, default=8443, help="port for nodes (%(default)s)")
    server.add_argument(
        "--open_to_network",
        action="store_true",
        help="let --host be other than loopback: nodes' requests alone pass the filter there",
    )
    server.add_argument(
        "--superlink_port",
        type=int,
        default=8000,
        help="port of its SuperLink, on loopback (%(default)s)",
    )
    server.add_weaker_privacy()
    server.set_defaults(run=_server)

    node = commands.add_parser("node", help="run as one client")
    node.add_path("--keys", "FOLDER", "the node's keys")
    node.add_path("--settings", "FILE", "the file node.toml")
    node.add_argument("--server", metavar="HOST:PORT", required=True, help="the server's address")
    node.add_argument(
        "--port", type=int, default=8101, help="port of its SuperNode, on loopback (%(default)s)"
    )
    node.set_defaults(run=_node)

    demo = commands.add_parser("demo", help="run a fleet on this machine, every part as a process")
    demo.add_path("--export", "FOLDER", "folder of the export")
    demo.add_path("--clients", "FOLDER", "folder with a file NAME.tfrecord per client")
    demo.add_argument(
        "--nodes", type=int, default=4, help="number of nodes, at least 3 (%(default)s)"
    )
    demo.add_argument("--rounds", type=int, default=3, help="number of rounds (%(default)s)")
    demo.add_argument(
        "--output", metavar="FOLDER", type=Path, help="new folder to keep; none by default"
    )
    demo.add_weaker_privacy()
    demo.set_defaults(run=_demo)
    return parser


def _keys(arguments: argparse.Namespace) -> None:
    from fleet import keys

    folder = arguments.output
    if arguments.node is not None:
        for flag in ("nodes", "days"):
            if getattr(arguments, flag) is not None:
                raise PlanError(f"--{flag} has no effect with --node")
        public = keys.make_node_keys(folder, arguments.node)
        print(f"{folder}: secrets of {arguments.node}, which stay on this machine")
        print(f"{public}: send this to the server's operator")
        return
    if not arguments.nodes:
        raise PlanError(f"--nodes: expected files NAME{keys.PUBLIC} of nodes, found none")
    days = 365 if arguments.days is None else arguments.days
    if days < 1:
        raise PlanError(f"--days: expected at least 1, found {days}")
    nodes = [Path(name) for name in arguments.nodes.split(",")]
    keys.make_server_keys(folder, arguments.server.split(","), nodes, days)
    for name in (keys.AUTHORITY, keys.CERTIFICATE):
        path = folder / name
        print(f"{path}: valid until {keys.expiry(keys.read_certificate(path))}")
    print(f"{folder / keys.ROSTER}: {counted(len(nodes), 'node')}")
    print(f"send {keys.AUTHORITY} and {keys.ROSTER} to every node; all else stays here")


def _server(arguments: argparse.Namespace) -> None:
    from fleet.launch import LOOPBACK, run_server

    if arguments.host not in LOOPBACK and not arguments.open_to_network:
        raise PlanError(
            f"--host: expected loopback, found {arguments.host}, which others may reach: "
            "--open_to_network allows it"
        )
    if arguments.rounds < 1:
        raise PlanError(f"--rounds: expected at least 1, found {arguments.rounds}")
    run_server(
        *(arguments.keys, arguments.settings, arguments.rounds),
        *((arguments.host, arguments.port), arguments.superlink_port),
        *(_report, arguments.weaker_privacy),
    )


def _node(arguments: argparse.Namespace) -> None:
    from fleet.launch import run_node

    host, _, port = arguments.server.rpartition(":")
    if not host or not port.isdigit():
        raise PlanError(f"--server: expected HOST:PORT, found {arguments.server}")
    address = host, int(port)
    run_node(arguments.keys, arguments.settings, address, arguments.port, _report)


def _demo(arguments: argparse.Namespace) -> None:
    from fleet.demo import Demo

    if arguments.nodes < 3 or arguments.rounds < 1:
        raise PlanError("expected --nodes of at least 3 and --rounds of at least 1")
    with contextlib.ExitStack() as stack:
        folder = arguments.output
        if folder is None:
            parent = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet_"))
            folder = Path(parent) / "demo"
        elif folder.exists():
            raise PlanError(f"--output: expected a new folder, found {folder}")
        Demo(
            *(arguments.export, arguments.clients, arguments.nodes, arguments.rounds),
            *(folder.resolve(), _report, arguments.weaker_privacy),
        ).run()


def _report(line: str) -> None:
    print(line, flush=True)
