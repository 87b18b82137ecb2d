"""Large packages, imported on first use.

Help and refused flags then need no import of them. Modules write
`from tff_agnostic.base.later import tf` in place of `import tensorflow as tf`. Nothing else is
different: the attributes are those of the package, and Python's own lock guards the import.
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
    """Returns TensorFlow Federated."""
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
    """No collection of garbage: an import makes hundreds of thousands of objects, and hardly any.

    Collections would take a fifth of TensorFlow's import. If nothing else is frozen, what the
    import made is old afterwards, so that the next collections do not go through it either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()  # puts all into the oldest generation, and visits none
            gc.enable()


def _imported(package: str) -> Any:
    if package in sys.modules:
        # Python's own lock waits for a thread that is in the middle of the import.
        return importlib.import_module(package)
    with _without_collections():
        return importlib.import_module(package)


class Later(types.ModuleType):
    """A package that is imported on first use, by its name."""

    def __getattr__(self, name: str) -> Any:
        # Called only for names that were not looked up before.
        if self.__name__ == _TFF:
            require_tff()
        package = _imported(self.__name__)
        try:
            found = getattr(package, name)
        except AttributeError:
            try:
                found = importlib.import_module(f"{self.__name__}.{name}")
            except ModuleNotFoundError:
                raise AttributeError(
                    f"module {self.__name__!r} has no attribute {name!r}"
                ) from None
        setattr(self, name, found)
        return found

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        # Other processes get the package itself.
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
