"""Builds the documentation site, and serves it on this machine.

`./run docs` calls this script in the environment for documentation.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn, Optional

from tools.docs import api
from tools.docs.sources import SiteError, collect, with_generated, with_order, write_changed

ROOT = Path(__file__).resolve().parents[2]
# Folder for Sphinx's caches and the site, which git ignores.
BUILD = ROOT / "build" / "docs"
_USAGE_STATUS = 2
_ADDRESS = "127.0.0.1"
# File that identifies a folder as Sphinx's output.
_BUILT = ".buildinfo"
# Pages that Sphinx generates without a source file.
_SPHINX_PAGES = ("genindex.html", "py-modindex.html", "search.html")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return _run(given)
    except SiteError as e:
        print(e, file=sys.stderr)
        return 1
    except OSError as e:
        if e.filename is None:
            raise
        _refuse(f"{e.filename}: cannot read or write ({e.strerror})")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(given: argparse.Namespace) -> int:
    output = BUILD / "html" if given.output is None else given.output.resolve()
    if output.exists() and any(output.iterdir()) and not (output / _BUILT).is_file():
        _refuse(f"--output: expected a new or empty folder or a site, found {output} with others")
    server = None if given.no_serve or given.check else _server(given.port, output)
    build(output, given.package_python)
    print(f"site: {output / 'index.html'}")
    if given.check:
        return check(output)
    if server is not None:
        _serve(server)
    return 0


def build(output: Path, package_python: Path) -> None:
    """Writes the site to a folder.

    Args:
        package_python: Python executable of the package's environment.

    Raises:
        SiteError: Pages or links are invalid; the message has a line for each problem.
    """
    pages, files = collect(ROOT)
    api_pages, modules = api.pages(ROOT)
    pages = with_generated(pages, {**_commands(package_python), **api_pages})
    changed = write_changed(BUILD / "source", with_order(pages), files)
    if write_changed(BUILD / "package", modules, {}):
        changed = True
        for page in api_pages:
            # Make the page newer, so that Sphinx reads it again.
            (BUILD / "source" / page).touch()
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "--jobs",
        "auto",
        "--fail-on-warning",
        "--quiet",
    ]
    command += ["-c", ROOT / "tools" / "docs", "-d", BUILD / "doctrees", BUILD / "source", output]
    # Write all pages if one has changed, because every page lists the other pages.
    whole = BUILD / "whole"
    if changed or not whole.is_file() or whole.read_text(encoding="utf-8") != str(output):
        command.append("--write-all")
        whole.unlink(missing_ok=True)
    variables = {
        "TFF_AGNOSTIC_ROOT": str(ROOT),
        "TFF_AGNOSTIC_PUBLIC": str(BUILD / "package" / api.PACKAGE),
        "TFF_AGNOSTIC_VERSION": version(),
    }
    if subprocess.run(command, env={**os.environ, **variables}, check=False).returncode:
        raise SiteError("the site was not built: see Sphinx's warnings above")
    for made in output.rglob("*.html"):
        # Delete pages of earlier builds, which Sphinx keeps.
        source = (BUILD / "source" / made.relative_to(output)).with_suffix(".md")
        if not source.is_file() and made.name not in _SPHINX_PAGES:
            made.unlink()
    whole.write_text(str(output), encoding="utf-8")


def check(output: Path) -> int:
    """Checks all links in Markdown pages and in the site, and returns the exit status."""
    links: list[str | Path] = [
        Path(sys.executable).with_name("lychee"),
        "--offline",
        "--include-fragments",
    ]
    links += ["--no-progress", output, ROOT / "docs", ROOT / "benchmarks", *ROOT.glob("*.md")]
    return int(subprocess.run(links, check=False).returncode != 0)


def _commands(package_python: Path) -> dict[str, str]:
    """Generates the pages of commands in the package's environment, keyed by path."""
    done = subprocess.run(
        [package_python, "-P", "-m", "tools.docs.commands"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SiteError("the pages of commands were not made: see above")
    made: dict[str, str] = json.loads(done.stdout)
    return made


def version() -> str:
    """Reads the package's version from the source code."""
    tree = ast.parse((ROOT / "tff_agnostic" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return str(ast.literal_eval(node.value))
    raise SiteError("tff_agnostic/__init__.py: expected __version__, found none")


def _server(port: int, folder: Path) -> ThreadingHTTPServer:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return ThreadingHTTPServer((_ADDRESS, port), partial(_SilentHandler, directory=str(folder)))
    except OSError as e:
        _refuse(f"--port: expected a port that is free, found {port} ({e.strerror})")


class _SilentHandler(SimpleHTTPRequestHandler):
    """A request handler that does not log requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def _serve(server: ThreadingHTTPServer) -> None:
    print(f"serving on http://{_ADDRESS}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(f"{message} (./run docs --help)")


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_USAGE_STATUS)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="./run docs",
        description="Builds the site of the documentation, and shows it on this machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--no-serve", action="store_true", help="build only")
    parser.add_argument(
        "--check",
        action="store_true",
        help="build, and check links with their fragments",
    )
    parser.add_argument("--port", type=_port, default=8000, help="where it is served [8000]")
    parser.add_argument("--output", type=Path, help="folder of the site [build/docs/html]")
    # The script `run` passes this flag.
    parser.add_argument("--package_python", type=Path, required=True, help=argparse.SUPPRESS)
    return parser


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"expected an integer below 65536, found {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
