"""A user's own Python file: run as a module, with errors that show their lines only."""

import contextlib
import inspect
import linecache
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.errors import UserError

# The file's name as a module: what it defines can be found there, such as by dataclasses.
_MODULE = "_tff_agnostic_user_file"
_OTHERS = (Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib")).resolve())
# Modules that were imported from the folder of the file that was loaded last.
_imported: set[str] = set()


class UserFile:
    """A Python file, executed. What lies next to it can be imported, as by a script.

    One file at a time: a second one may have helpers of the same names next to it, so that those of
    the first are forgotten then.

    Args:
        path: The file.

    Raises:
        UserError: If there is no such file, it is not Python, or it fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.resolve().parent
        code = self._compile()
        for name in (*_imported, _MODULE):
            sys.modules.pop(name, None)
        _imported.clear()
        self._module = types.ModuleType(_MODULE)
        self._module.__file__ = code.co_filename
        sys.modules[_MODULE] = self._module
        with self.running("it"):
            exec(code, vars(self._module))

    def function(self, name: str, argument: str) -> Callable[[Any], Any]:
        """Returns a function of one argument that the file defines.

        Raises:
            UserError: If it does not; says which functions there are.
        """
        found = vars(self._module).get(name)
        if not callable(found):
            functions = [
                key
                for key, value in vars(self._module).items()
                if inspect.isfunction(value) and value.__module__ == _MODULE
            ]
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
    def running(self, what: str) -> Iterator[None]:
        """While code of the file runs: its folder is searched by imports, its errors are shown.

        Args:
            what: Names what runs, for the message.

        Raises:
            UserError: If anything is raised: the user's own lines, if there are any, and the
                exception; of a `UserError` the message alone. It begins with the file's name.
        """
        before = set(sys.modules)
        sys.path.insert(0, str(self._folder))
        try:
            yield
        except UserError as e:
            raise UserError(f"{self.path}: {e}") from e
        except (Exception, SystemExit) as e:
            raise UserError(f"{self.path}: {what} fails{self._shown(e)}") from e
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(str(self._folder))
            for name in set(sys.modules) - before:
                if self._is_beside(getattr(sys.modules[name], "__file__", None)):
                    _imported.add(name)

    def raised(self, error: BaseException) -> bool:
        """Returns whether an exception came out of the user's own lines."""
        return bool(self._frames(error))

    def _compile(self) -> types.CodeType:
        try:
            source = self.path.read_bytes()
        except FileNotFoundError as e:
            raise UserError(f"{self.path}: expected a Python file, found none") from e
        except OSError as e:
            raise UserError(f"{self.path}: cannot read: {e.strerror or e}") from e
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
        return [frame for frame in frames if self._is_beside(frame.filename)]

    def _is_beside(self, file_name: Optional[str]) -> bool:
        if file_name is None:
            return False
        parents = Path(file_name).resolve().parents
        # An environment, Python or this package may lie in the same folder.
        are_others = "site-packages" in file_name or any(folder in parents for folder in _OTHERS)
        return self._folder in parents and not are_others


def in_one_line(error: BaseException) -> str:
    """Returns an exception's type and message in a line, without Keras' list of arguments."""
    message = " ".join(str(error).split()).partition(" Call arguments received")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
