"""The files of the Flower app that starts a fleet.

These files only import the installed package. They cannot change what a node executes: it runs its
operator's installed package and pinned export.
"""

from __future__ import annotations

_PROJECT = """\
[project]
name = "fleet-app"
version = "1.0.0"
description = "Starts a fleet that runs an export"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fleet"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
manifest-sha256 = "{manifest}"
settings = ""
rounds = 0
weaker_privacy = false
"""
_SERVER_APP = """\
from fleet.flower import server_app as app

__all__ = ["app"]
"""
# Nodes do not load this part of the app.
_CLIENT_APP = """\
from flwr.clientapp import ClientApp

app = ClientApp()
"""


def app_files(manifest: str) -> dict[str, str]:
    """Returns the contents of the app's files, keyed by file name.

    Args:
        manifest: SHA-256 of the export's manifest, as 64 hexadecimal digits.
    """
    return {
        "pyproject.toml": _PROJECT.format(manifest=manifest),
        "server_app.py": _SERVER_APP,
        "client_app.py": _CLIENT_APP,
    }
