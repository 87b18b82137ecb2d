"""A user's own Python file: run as a module, with errors that show their lines only."""

import contextlib
import hashlib
import inspect
import linecache
import sys
import threading
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import digest, read_file
from tff_agnostic.models.user_imports import UserImports

# How many names of a file a message lists.
_MAX_NAMES = 10
# After so long a user should know what is waited for.
_LONG_SECONDS = 30.0


class UserFile:
    """A Python file, executed. What lies next to it can be imported, as by a script.

    Every file is a module of its own, with modules of its own next to it: several may be there at
    once, and one may be there twice.

    Args:
        path: The file.

    Attributes:
        path: The file.

    Raises:
        UserError: If there is no such file, it is not Python, or it fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = read_file(path, "a Python file")
        code = self._compile(self._source)
        self._imports = UserImports(Path(code.co_filename).parent)
        # Not its own name: a folder of that name may lie next to it.
        self._module = types.ModuleType(f"{self._imports.package}.__main__")
        self._module.__file__ = code.co_filename
        self._imports.prepare(self._module)
        # There dataclasses, type hints and pickle find what the file defines.
        sys.modules[self._module.__name__] = self._module
        with self.running("it"):
            exec(code, vars(self._module))

    def digests(self) -> dict[str, str]:
        """Returns short names of the file's content, "file", and of what it imports, "imports".

        Imports are the Python files next to it that were imported until now, each under its name
        from the folder on: it is the same wherever the folder lies. Without any there is no entry.
        """
        digests = {"file": digest(self._source)}
        sources = sorted(self._imports.sources.items())
        if sources:
            lines = [f"{name} {hashlib.sha256(source).hexdigest()}\n" for name, source in sources]
            digests["imports"] = digest("".join(lines).encode())
        return digests

    def value(self, name: str, what: str, is_right: Callable[[Any], bool]) -> Any:
        """Returns a value that the file defines outside of functions and classes.

        Args:
            name: Its name.
            what: What it has to be, for the message.
            is_right: Returns whether a value is that.

        Raises:
            UserError: If the value is something else, or there is none; says what there is.
        """
        if name not in vars(self._module):
            names = list(self._defined())
            shown = [*names[:_MAX_NAMES], "..."] if len(names) > _MAX_NAMES else names
            raise UserError(
                f"{self.path}: expected {name}, {what}, found {', '.join(shown) or 'nothing'}"
            )
        value = vars(self._module)[name]
        if not is_right(value):
            raise UserError(f"{self.path}: {name}: expected {what}, found {kind_of(value)}")
        return value

    def function(self, name: str, argument: str) -> Callable[[Any], Any]:
        """Returns a function of one argument that the file defines.

        Raises:
            UserError: If it does not; says which functions there are.
        """
        found = vars(self._module).get(name)
        if not callable(found):
            functions = [key for key, v in self._defined().items() if inspect.isfunction(v)]
            raise UserError(
                f"{self.path}: expected a function {name}({argument}), found "
                f"{', '.join(functions) or 'no function'}"
            )
        try:
            signature = inspect.signature(found)
            signature.bind(None)
        except TypeError as e:
            raise UserError(
                f"{self.path}: expected a function {name}({argument}), found {name}{signature}"
            ) from e
        function: Callable[[Any], Any] = found
        return function

    @contextlib.contextmanager
    def running(self, what: str, made_by: Optional[Callable[..., Any]] = None) -> Iterator[None]:
        """While code of the file runs: its folder is searched by imports, its errors are shown.

        Args:
            what: Names what runs, for the message.
            made_by: The function that made what runs; where none of the user's lines were running,
                the message names the line where it begins.

        Raises:
            UserError: If anything is raised: the user's own lines, if there are any, and the
                exception; of a `UserError` the message alone. It begins with the file's name.
        """
        with self._imports.by_name(), _said_if_long(f"{self.path}: {what}"):
            try:
                yield
            except UserError as e:
                raise UserError(f"{self._place_of(made_by)}: {e}") from e
            except KeyboardInterrupt:
                # Ctrl-C, which is no mistake of the file.
                raise
            except BaseException as e:  # A file may raise anything, also what ends Python.
                place = self.path if self.raised(e) else self._place_of(made_by)
                raise UserError(f"{place}: {what} fails{self._shown(e)}") from e

    def raised(self, error: BaseException) -> bool:
        """Returns whether an exception came out of the user's own lines."""
        return bool(self._frames(error))

    def _place_of(self, function: Optional[Callable[..., Any]]) -> str:
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename != self._module.__file__:
            return str(self.path)
        return f"{self.path}, line {code.co_firstlineno}"

    def _defined(self) -> dict[str, Any]:
        """Returns what the file defines by name, without what it imported."""
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

    def _shown(self, error: BaseException) -> str:
        frames = self._frames(error)
        if not frames:
            return f": {in_one_line(error)}"
        lines = traceback.format_list(frames)
        lines += traceback.format_exception_only(type(error), error)
        return ":\n" + "".join(lines).rstrip()

    def _frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        frames = traceback.extract_tb(error.__traceback__)
        return [frame for frame in frames if self._imports.is_beside(frame.filename)]


@contextlib.contextmanager
def _said_if_long(what: str) -> Iterator[None]:
    """Prints a line once what runs inside takes long: a loop without end looks like work."""
    text = (
        f"note: waiting for {what} has run for {_LONG_SECONDS:g} s and has not ended (to end the "
        "command, press Ctrl-C twice)"
    )
    timer = threading.Timer(_LONG_SECONDS, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_one_line(error: BaseException) -> str:
    """Returns an exception's type and message in a line, without Keras' list of arguments."""
    message = " ".join(str(error).split()).partition(" Call arguments received")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def kind_of(value: Any) -> str:
    """Returns what kind of thing a value is, for messages."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
