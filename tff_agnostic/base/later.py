"""Large packages, imported on first use.

Commands that only print help or reject flags thus start without these packages. Modules write `from
tff_agnostic.base.later import tf` instead of `import tensorflow as tf`, and use `tf` as usual.
Python's own lock guards the import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from tff_agnostic.base.errors import UserError

_TFF = "tensorflow_federated"


def require_tff() -> Any:
    """Returns the package TensorFlow Federated; raises a `UserError` if it is not installed."""
    try:
        return _imported(_TFF)
    except ModuleNotFoundError as e:
        if e.name != _TFF:
            raise
        raise UserError(
            "expected TensorFlow Federated 0.87, which secure sums, the runtime tff, exports, "
            "learning processes and its data sets need, found none: the reference platform has it, "
            "which is ./run without TFF_AGNOSTIC_PLATFORM, or what requirements.lock installs in "
            "CPython 3.11 for Linux"
        ) from e


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disables garbage collection: an import creates many objects, but hardly any garbage.

    Collections would take a fifth of TensorFlow's import time. After the import, its objects move
    to the oldest generation, which later collections rarely visit; this is omitted if the program
    has called `gc.freeze`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()  # Move all objects to the oldest generation without visiting them.
            gc.enable()


def _imported(package: str) -> Any:
    if package in sys.modules:
        # Python's own lock waits for a thread that is in the middle of the import.
        return importlib.import_module(package)
    with _without_collections():
        return importlib.import_module(package)


class Later(types.ModuleType):
    """A package that is imported on first use, identified by its name."""

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that were not used before.
        if self.__name__ == _TFF:
            require_tff()
        package = _imported(self.__name__)
        try:
            value = getattr(package, name)
        except AttributeError:
            try:
                value = importlib.import_module(f"{self.__name__}.{name}")
            except ModuleNotFoundError:
                raise AttributeError(
                    f"module {self.__name__!r} has no attribute {name!r}"
                ) from None
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        # Unpickling imports the package itself.
        return importlib.import_module, (self.__name__,)


if TYPE_CHECKING:
    import dp_accounting
    import h5py
    import jinja2
    import matplotlib
    import scipy
    import sklearn
    import tensorflow as tf
    import tensorflow_federated as tff
else:
    dp_accounting = Later("dp_accounting")
    h5py = Later("h5py")
    jinja2 = Later("jinja2")
    matplotlib = Later("matplotlib")
    scipy = Later("scipy")
    sklearn = Later("sklearn")
    tf = Later("tensorflow")
    tff = Later(_TFF)

__all__ = [
    "Later",
    "dp_accounting",
    "h5py",
    "jinja2",
    "matplotlib",
    "require_tff",
    "scipy",
    "sklearn",
    "tf",
    "tff",
]
