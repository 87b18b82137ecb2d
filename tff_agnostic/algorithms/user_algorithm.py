"""An algorithm of a user's own: a Python file that defines `ALGORITHM`, an `AlgorithmSpec`.

What fails in its functions is told with the user's own lines.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tff_agnostic.algorithms.registry import ALGORITHMS
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem
from tff_agnostic.algorithms.user_functions import checked_algorithm, trace_round
from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.errors import UserError
from tff_agnostic.models.user_file import UserFile
from tff_agnostic.registry import Registry
from tff_agnostic.setting_flags import settings_in
from tff_agnostic.settings import Settings

_SUFFIX = ".py"
_DEFINITION = "ALGORITHM"
# In the fingerprint of a run: the user's file, and what it imports from beside it.
OWN_CODE = ("algorithm", "files that the algorithm imports")
_KINDS = (bool, int, float, str)
_ITEMS = (int, float, str)
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
    return _of(path).spec


def algorithm_fingerprint(name: str) -> dict[str, str]:
    """Returns what a run depends on of an algorithm beside its settings: the code of a user's.

    To be asked for after the algorithm was built, which may import further files.
    """
    if not is_user_file(name):
        return {}
    loaded = _of(Path(name))
    # Later digests may have more: what runs may import, too, and a second run finds it imported.
    digests = loaded.digests or loaded.file.digests()
    return {
        ours: digests[key] for ours, key in zip(OWN_CODE, ("file", "imports")) if key in digests
    }


@contextlib.contextmanager
def making_options_of(name: str) -> Iterator[None]:
    """While an algorithm's options are made: errors of a user's own checks are told with its lines.

    Raises:
        UserError: If they are not `UserError` themselves, which say enough.
    """
    if not is_user_file(name):
        yield
        return
    mistake = None
    with _of(Path(name)).file.running("options"):
        try:
            yield
        except UserError as e:
            mistake = e
    if mistake is not None:
        raise mistake


def _of(path: Path) -> "_Loaded":
    try:
        found = path.stat()
    except OSError:
        # Says what is wrong with it.
        return _loaded(path, 0, 0)
    return _loaded(path.absolute(), found.st_mtime_ns, found.st_size)


@dataclasses.dataclass
class _Loaded:
    file: UserFile
    spec: AlgorithmSpec
    digests: dict[str, str] = dataclasses.field(default_factory=dict)


@functools.lru_cache(maxsize=_KEPT_FILES)
def _loaded(path: Path, mtime_ns: int, size: int) -> _Loaded:
    del mtime_ns, size
    file = UserFile(path)
    spec: AlgorithmSpec = file.value(
        _DEFINITION, "an AlgorithmSpec", lambda value: isinstance(value, AlgorithmSpec)
    )
    with file.running("options"):
        _check_options(spec.options)
        if not isinstance(spec.label, str):
            raise UserError(f"label: expected a text, found {_shown(spec.label)}")

    def build(problem: Problem, options: Any) -> Algorithm:
        with file.running("build"):
            algorithm = checked_algorithm(spec.build(problem, options), problem, file)
        trace_round(algorithm)
        loaded.digests = loaded.digests or file.digests()
        return algorithm

    loaded = _Loaded(file, dataclasses.replace(spec, build=build))
    return loaded


def _check_options(options: Any) -> None:
    if not (isinstance(options, type) and issubclass(options, Settings)):
        raise UserError(f"options: expected a subclass of Settings, found {_shown(options)}")
    fields = {field.name: field for field in dataclasses.fields(options)}
    undeclared = sorted(set(vars(options).get("__annotations__", {})) - set(fields))
    if undeclared:
        raise UserError(
            f"options: expected a frozen dataclass, found a plain class with {undeclared[0]}"
        )
    for name, field in fields.items():
        if "help" not in field.metadata:
            raise UserError(
                f"options: expected every field to be a setting(default, help), found {name}"
            )
        if not isinstance(field.metadata.get("choices", ALGORITHMS), Registry):
            raise UserError(f"options: expected a Registry as choices of {name}")
    for setting in settings_in(options):
        if not setting.flag.isidentifier():
            raise UserError(
                f"options: expected a flag of letters, digits and _ for {setting.field.name}, "
                f"found {setting.flag!r}"
            )
        is_list = setting.kind is tuple and setting.item in _ITEMS
        if not is_list and setting.kind not in _KINDS:
            raise UserError(
                f"options: expected {setting.field.name} to be bool, int, float, str or "
                f"tuple[float, ...], optional or not, found {_shown(setting.kind)}"
            )
    options()


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
