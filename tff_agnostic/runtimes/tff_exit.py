"""A quiet end of Python for processes that never run anything in TFF's own context."""

from __future__ import annotations

import atexit
import sys


def drop_tff_context_at_exit() -> None:
    """Makes Python drop TFF's default context when it ends, if TFF was imported by then.

    Left until the interpreter takes its modules apart, that context's destructor can fail, loudly.
    """
    atexit.unregister(_drop_default_context)
    atexit.register(_drop_default_context)


def _drop_default_context() -> None:
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None:
        tff.framework.set_default_context(tff.test.create_runtime_error_context())
