"""A quiet end of Python for processes that never run anything in TFF's own context."""

from __future__ import annotations

import atexit
import sys

_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.atomic_function"


def end_quietly() -> None:
    """Makes Python end without the complaints of TensorFlow's and TFF's destructors.

    They are of use while a process runs. When the interpreter takes its modules apart, they may
    fail, loudly: TFF's default context ends a process by a module, and functions of TensorFlow
    count themselves in a table, that are gone by then.
    """
    for ends in (_drop_default_context, _drop_destructor_of_functions):
        atexit.unregister(ends)
        atexit.register(ends)


def _drop_default_context() -> None:
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None:
        tff.framework.set_default_context(tff.test.create_runtime_error_context())


def _drop_destructor_of_functions() -> None:
    functions = sys.modules.get(_FUNCTIONS)
    kind = getattr(functions, "AtomicFunction", None)
    if kind is not None and "__del__" in vars(kind):
        del kind.__del__
