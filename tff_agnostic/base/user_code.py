"""Executes a user's own Python file as a module, with errors that show only the user's lines."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.machinery
import inspect
import itertools
import linecache
import logging
import os
import re
import sys
import sysconfig
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.base.errors import UserCodeError, UserError
from tff_agnostic.base.files import digest, read_file

# Maximum number of a file's names to list in a message.
_MAX_NAMES = 10
# Seconds after which a warning reports that the file is still running.
_LONG_SECONDS = 30.0
# Without a handler, Python writes this logger's warnings to stderr.
_LOGGER = logging.getLogger(__name__)
# Prefix of the names of packages with a user's modules.
_PACKAGE = "user_file_"
_OTHERS = (Path(__file__).resolve().parents[2], Path(sysconfig.get_path("stdlib")).resolve())

# Keras 3's error for a TensorFlow function in a functional model. The advice in Keras' message
# takes 20 lines.
_SYMBOLIC = "A KerasTensor cannot be used as input to a TensorFlow function"
_INSTEAD = (
    "ValueError: expected layers or keras.ops on the inputs of a functional model, as Keras 3 has "
    "them, found a function of TensorFlow (docs/reference/platforms.md)"
)
# Terminal colours.
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
_ARGUMENTS = re.compile(r" (Call arguments received|Arguments received by) ")


class UserFile:
    """An executed Python file, which can import modules next to it, as a script can.

    Every loaded file is a separate module, and so are the modules next to it. This allows loading
    several files at once, or the same file twice.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = read_file(path, "a Python file")
        code = self._compile(self._source)
        self._imports = UserImports(Path(code.co_filename).parent)
        # Do not name the module after the file, as a folder of that name may be next to it.
        self._module = types.ModuleType(f"{self._imports.package}.__main__")
        self._module.__file__ = code.co_filename
        self._imports.prepare(self._module)
        # Dataclasses, type hints and pickle look up the file's definitions in `sys.modules`.
        sys.modules[self._module.__name__] = self._module
        with self.running("it"):
            exec(code, vars(self._module))

    def digests(self) -> dict[str, str]:
        """Returns short digests of the file's content, "file", and of its imports, "imports".

        The imports are the Python files imported from the user's folder so far, named by their
        paths relative to the folder. Without imports the entry "imports" is missing.
        """
        digests = {"file": digest(self._source)}
        sources = sorted(self._imports.sources.items())
        if sources:
            lines = [f"{name} {hashlib.sha256(source).hexdigest()}\n" for name, source in sources]
            digests["imports"] = digest("".join(lines).encode())
        return digests

    def value(self, name: str, what: str, is_right: Callable[[Any], bool]) -> Any:
        """Returns a value that the file defines at module level.

        Args:
            what: Description of the expected value, for the message.
            is_right: value -> whether the value is valid.
        """
        if name not in vars(self._module):
            names = list(self._defined())
            shown = [*names[:_MAX_NAMES], "..."] if len(names) > _MAX_NAMES else names
            raise UserError(
                f"{self.path}: expected {name}, {what}, found {', '.join(shown) or 'nothing'}"
            )
        value = vars(self._module)[name]
        if not is_right(value):
            raise UserError(f"{self.path}: {name}: expected {what}, found {value_kind(value)}")
        return value

    def function(self, name: str, argument: str) -> Callable[[Any], Any]:
        """Returns a function of one argument that the file defines."""
        value = vars(self._module).get(name)
        if not callable(value):
            functions = [key for key, v in self._defined().items() if inspect.isfunction(v)]
            raise UserError(
                f"{self.path}: expected a function {name}({argument}), found "
                f"{', '.join(functions) or 'no function'}"
            )
        try:
            signature = inspect.signature(value)
            signature.bind(None)
        except TypeError as e:
            raise UserError(
                f"{self.path}: expected a function {name}({argument}), found {name}{signature}"
            ) from e
        function: Callable[[Any], Any] = value
        return function

    @contextlib.contextmanager
    def running(self, what: str, made_by: Optional[Callable[..., Any]] = None) -> Iterator[None]:
        """Context for the file's code: imports search its folder, and errors show its lines.

        Args:
            what: Name of the running code, for the message.
            made_by: The function that created the running code. The message names the function's
                first line if no line of the user was running.
        """
        with self._imports.by_name(), _warning_if_long(f"{self.path}: {what}"):
            try:
                yield
            except UserError as e:
                kind = UserCodeError if isinstance(e, UserCodeError) else UserError
                raise kind(f"{self._location(made_by)}: {e}") from e
            except KeyboardInterrupt:
                # Ctrl-C is not an error of the file.
                raise
            # The file may raise anything, including exceptions that end Python.
            except BaseException as e:
                if self.raised(e):
                    raise UserCodeError(f"{self.path}: {what} fails:\n{self._trace(e)}") from e
                place = self._location(made_by)
                raise UserError(f"{place}: {what} fails: {in_one_line(e)}") from e

    def raised(self, error: BaseException) -> bool:
        """Returns whether an exception came from the user's own lines."""
        return bool(self._frames(error))

    def _location(self, function: Optional[Callable[..., Any]]) -> str:
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename != self._module.__file__:
            return str(self.path)
        return f"{self.path}, line {code.co_firstlineno}"

    def _defined(self) -> dict[str, Any]:
        """Returns the file's own definitions by name, without its imports."""
        own_name = self._module.__name__
        return {
            name: value
            for name, value in vars(self._module).items()
            if not name.startswith("_")
            and not isinstance(value, types.ModuleType)
            and (not hasattr(value, "__name__") or value.__module__ == own_name)
        }

    def _compile(self, source: bytes) -> types.CodeType:
        file_name = str(self.path.resolve())
        linecache.checkcache(file_name)
        try:
            return compile(source, file_name, "exec", dont_inherit=True)
        except SyntaxError as e:
            line = f", line {e.lineno}" if e.lineno else ""
            text = f": {e.text.strip()}" if e.text and e.text.strip() else ""
            raise UserError(f"{self.path}{line}: not Python: {e.msg}{text}") from e
        except ValueError as e:
            raise UserError(f"{self.path}: not Python: {e}") from e

    def _trace(self, error: BaseException) -> str:
        lines = traceback.format_list(self._frames(error))
        if _SYMBOLIC in str(error):
            lines.append(_INSTEAD)
        else:
            lines += traceback.format_exception_only(type(error), error)
        return "".join(lines).rstrip()

    def _frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        frames = traceback.extract_tb(error.__traceback__)
        return [frame for frame in frames if self._imports.is_in_folder(frame.filename)]


@contextlib.contextmanager
def _warning_if_long(what: str) -> Iterator[None]:
    """Logs a warning if the context lasts long, as the file may be in an endless loop."""
    text = (
        f"note: waiting for {what} has run for {_LONG_SECONDS:g} s and has not ended (to end the "
        "command, press Ctrl-C twice)"
    )
    timer = threading.Timer(_LONG_SECONDS, _LOGGER.warning, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_one_line(error: BaseException) -> str:
    """Returns an exception's type and message in one line, without Keras' list of arguments."""
    message = " ".join(_ESCAPES.sub("", str(error)).split())
    message = _ARGUMENTS.split(message)[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def value_kind(value: Any) -> str:
    """Returns a description of a value's kind, for messages."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def is_user_module(module: str) -> bool:
    """Returns whether a module belongs to this package or to a user's file or script."""
    return module.startswith((_PACKAGE, "tff_agnostic.", "__main__"))


class UserImports(MetaPathFinder):
    """Lets a file import modules as a script does: modules next to it have precedence.

    Modules next to the file become submodules of a package that belongs to this file. Two files may
    therefore have different neighbouring modules of the same name, and each imports its own, even
    later in a function or in another thread.

    Args:
        folder: The file's folder, resolved.

    Attributes:
        package: Name of the package.
        sources: Content of every Python file imported from the folder, by its name relative to the
            folder.
    """

    def __init__(self, folder: Path) -> None:
        names = (f"{_PACKAGE}{number}" for number in itertools.count())
        self.package = next(name for name in names if name not in sys.modules)
        self.sources: dict[str, bytes] = {}
        self._folder = folder
        self._own: dict[str, bool] = {}
        self._by_name: dict[str, types.ModuleType] = {}
        # Import statements call the function `__import__` among a module's builtins.
        self._builtins = {**vars(builtins), "__import__": self._import}
        # Python's caches may lack a recently written module.
        importlib.invalidate_caches()
        package = types.ModuleType(self.package)
        package.__path__ = [str(folder)]
        sys.modules[self.package] = package
        sys.meta_path.insert(0, self)

    def prepare(self, module: types.ModuleType) -> None:
        """Lets `module`, which must not be executed yet, import modules as the file does."""
        vars(module)["__builtins__"] = self._builtins

    @contextlib.contextmanager
    def by_name(self) -> Iterator[None]:
        """Context for running user code that imports through functions such as `import_module`.

        Modules from the folder have their plain names in this context.
        """
        before = set(sys.modules)
        sys.modules.update(self._by_name)
        sys.path.insert(0, str(self._folder))
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(str(self._folder))
            for name in set(sys.modules) - before:
                file_name = getattr(sys.modules[name], "__file__", None)
                if file_name and self.is_in_folder(file_name) and not name.startswith(_PACKAGE):
                    self._by_name[name] = sys.modules.pop(name)
                    with contextlib.suppress(OSError):
                        self.keep(file_name, Path(file_name).read_bytes())

    def keep(self, file_name: str, source: bytes) -> None:
        """Adds a file's content to the sources."""
        self.sources[Path(os.path.relpath(file_name, self._folder)).as_posix()] = source

    def is_in_folder(self, file_name: Optional[str]) -> bool:
        """Returns whether a file is in the folder, or in a folder below it."""
        # Python's frozen modules have names such as <frozen os>.
        if file_name is None or file_name.startswith("<"):
            return False
        parents = Path(file_name).resolve().parents
        # The folder may also contain an environment, Python, or this package.
        if "site-packages" in file_name or any(folder in parents for folder in _OTHERS):
            return False
        # Classify a link by its own location, not by its target's.
        return self._folder in parents or self._folder in Path(file_name).parents

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[types.ModuleType] = None,
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Finds the submodules of the package; Python's import system calls this method."""
        if not fullname.startswith(f"{self.package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self)
        return spec

    def _import(
        self,
        name: str,
        globals_: Optional[Mapping[str, Any]] = None,
        locals_: Optional[Mapping[str, Any]] = None,
        fromlist: Optional[Sequence[str]] = (),
        level: int = 0,
    ) -> types.ModuleType:
        top = name.partition(".")[0]
        if level or not self._is_package_module(top):
            return builtins.__import__(name, globals_, locals_, fromlist or (), level)
        module = builtins.__import__(f"{self.package}.{name}", globals_, locals_, fromlist or ())
        # `import a.b` yields a.
        return module if fromlist else sys.modules[f"{self.package}.{top}"]

    def _is_package_module(self, name: str) -> bool:
        if name not in self._own:
            self._own[name] = self._is_sibling(name)
        return self._own[name]

    def _is_sibling(self, name: str) -> bool:
        if name in sys.builtin_module_names:
            return False
        spec = importlib.machinery.PathFinder.find_spec(name, [str(self._folder), *sys.path])
        if spec is None:
            return False
        if spec.origin is None:
            # Treat a folder without __init__.py as a module only if there is no better candidate.
            first = next(iter(spec.submodule_search_locations or ()), None)
            return name not in sys.modules and self.is_in_folder(first)
        return self.is_in_folder(spec.origin)


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module from its current source, ignoring compiled files."""

    def __init__(self, fullname: str, path: str, imports: UserImports) -> None:
        super().__init__(fullname, path)
        self._imports = imports

    def get_code(self, fullname: str) -> types.CodeType:
        source = self.get_data(self.path)
        self._imports.keep(self.path, source)
        code: types.CodeType = self.source_to_code(source, self.path)
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        self._imports.prepare(module)
        super().exec_module(module)
