"""An algorithm of a user's own: a Python file that defines `ALGORITHM`, an `AlgorithmSpec`.

What fails in its functions is told with the user's own lines.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Callable

from tff_agnostic.algorithms.registry import ALGORITHMS
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem
from tff_agnostic.computations.exchange import Algorithm, Exchange
from tff_agnostic.errors import UserError
from tff_agnostic.models.user_file import UserFile
from tff_agnostic.settings import Settings, kind_of

_SUFFIX = ".py"
_DEFINITION = "ALGORITHM"
_KINDS = (bool, int, float, str, tuple)
_KEPT_FILES = 16


def is_user_file(name: str) -> bool:
    """Returns whether the name of an algorithm is that of a Python file."""
    return name.endswith(_SUFFIX)


def algorithm_named(name: str) -> AlgorithmSpec:
    """Returns a registered algorithm by its name, or a user's by the path of its file.

    Raises:
        UserError: If there is none, or the file does not define one.
    """
    return load_user_algorithm(Path(name)) if is_user_file(name) else ALGORITHMS[name]


def algorithm_label(name: str) -> str:
    """Returns the short name of an algorithm, for folders and messages: a file's without suffix."""
    return Path(name).stem if is_user_file(name) else name


def load_user_algorithm(path: Path) -> AlgorithmSpec:
    """Returns the algorithm that a Python file defines.

    A file that has not changed is executed once, so that its settings are of one class.

    Raises:
        UserError: If the file is missing, is not Python, fails, or does not define an algorithm
            whose settings can be flags.
    """
    try:
        found = path.stat()
    except OSError:
        return _loaded(path, 0, 0)
    return _loaded(path.absolute(), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=_KEPT_FILES)
def _loaded(path: Path, mtime_ns: int, size: int) -> AlgorithmSpec:
    del mtime_ns, size
    file = UserFile(path)
    spec: AlgorithmSpec = file.value(
        _DEFINITION, "an AlgorithmSpec", lambda value: isinstance(value, AlgorithmSpec)
    )
    _check_options(path, spec.options)

    def build(problem: Problem, options: Any) -> Algorithm:
        with file.running("build"):
            algorithm = spec.build(problem, options)
        if not isinstance(algorithm, Algorithm):
            raise UserError(
                f"{path}: build: expected an Algorithm, found {type(algorithm).__name__}"
            )
        if not algorithm.exchanges:
            raise UserError(f"{path}: build: expected at least one exchange, found none")
        return _told_with_own_lines(algorithm, file)

    return dataclasses.replace(spec, build=build)


def _check_options(path: Path, options: Any) -> None:
    if not (isinstance(options, type) and issubclass(options, Settings)):
        raise UserError(
            f"{path}: options: expected a subclass of Settings, found {_shown(options)}"
        )
    for field in dataclasses.fields(options):
        if "help" not in field.metadata:
            raise UserError(
                f"{path}: options: expected every field to be a setting(default, help), found "
                f"{field.name}"
            )
        kind = kind_of(options, field)
        if kind not in _KINDS:
            raise UserError(
                f"{path}: options: expected {field.name} to be bool, int, float, str or a tuple of "
                f"floats, optional or not, found {_shown(kind)}"
            )
    undeclared = set(getattr(options, "__annotations__", {})) - {
        field.name for field in dataclasses.fields(options)
    }
    if undeclared:
        raise UserError(
            f"{path}: options: expected a frozen dataclass, found a plain class with "
            f"{', '.join(sorted(undeclared))}"
        )


@dataclasses.dataclass(frozen=True)
class _OfUser:
    """A user's function, whose errors are told with the lines of the user's file."""

    file: UserFile
    what: str
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.file.running(self.what):
            return self.function(*args, **kwargs)


def _told_with_own_lines(algorithm: Algorithm, file: UserFile) -> Algorithm:
    def exchange(of_user: Exchange) -> Exchange:
        return dataclasses.replace(
            of_user,
            prepare=_OfUser(file, f"prepare of exchange {of_user.name!r}", of_user.prepare),
            client=_OfUser(file, f"client of exchange {of_user.name!r}", of_user.client),
            bounds=_OfUser(file, f"bounds of exchange {of_user.name!r}", of_user.bounds),
        )

    return dataclasses.replace(
        algorithm,
        initialize=_OfUser(file, "initialize", algorithm.initialize),
        exchanges=tuple(map(exchange, algorithm.exchanges)),
        finish=_OfUser(file, "finish", algorithm.finish),
        models=_OfUser(file, "models", algorithm.models),
    )


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
