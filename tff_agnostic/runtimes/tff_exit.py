"""Prevents errors from TFF's default context when Python exits."""

from __future__ import annotations

import atexit
import sys


def drop_tff_context_at_exit() -> None:
    """Makes Python drop TFF's default context at exit, if the process has imported TFF.

    Otherwise the context's destructor can fail, and print errors, while Python unloads modules.
    """
    atexit.unregister(_drop_default_context)
    atexit.register(_drop_default_context)


def _drop_default_context() -> None:
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None:
        tff.framework.set_default_context(tff.test.create_runtime_error_context())
