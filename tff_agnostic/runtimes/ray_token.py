"""Ray's tokens: one that a Ray of this process alone asks for, and the user's for a cluster.

Ray can ask for one from version 2.52 on, and does so where `RAY_AUTH_MODE` says it.
"""

import os
import secrets
from pathlib import Path
from typing import Any, Optional

from ray import _raylet

from tff_agnostic.errors import UserError

_RAY: Any = _raylet
_CAN_ASK = hasattr(_RAY, "AuthenticationTokenLoader")


def new_token() -> dict[str, str]:
    """Returns the environment of Ray's processes with which they ask for a new token.

    Empty for a Ray that cannot ask.
    """
    if not _CAN_ASK:
        return {}
    # Of all places of a token, Ray looks at this variable first.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def read_environment() -> None:
    """Makes the Ray of this process read its environment again, which it does only once."""
    if _CAN_ASK:
        _RAY.Config.initialize("")
        _RAY.AuthenticationTokenLoader.instance().reset_cache()


def headers() -> list[tuple[str, str]]:
    """Returns the headers that show this user's token to a cluster; none where none is wanted.

    Raises:
        UserError: If `RAY_AUTH_MODE` wants one, and there is none.
    """
    if not _CAN_ASK or _RAY.get_authentication_mode() != _RAY.AuthenticationMode.TOKEN:
        return []
    _check_file(os.environ.get("RAY_AUTH_TOKEN_PATH"))
    found = _RAY.AuthenticationTokenLoader.instance().get_token_for_http_header()
    if not found:
        raise UserError(
            "RAY_AUTH_MODE=token: expected the token of Ray's nodes as RAY_AUTH_TOKEN, or in the "
            "file RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token, found none"
        )
    return list(found.items())


def _check_file(path: Optional[str]) -> None:
    # Ray ends the process over such a file, without a word that a user sees.
    if not path or os.environ.get("RAY_AUTH_TOKEN"):
        return
    try:
        found = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise UserError(f"RAY_AUTH_TOKEN_PATH={path}: cannot read Ray's token: {reason}") from e
    if not found:
        raise UserError(f"RAY_AUTH_TOKEN_PATH={path}: expected Ray's token, found an empty file")
