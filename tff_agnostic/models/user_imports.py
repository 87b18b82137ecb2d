"""What a user's Python file imports from beside it, kept apart from what other files import."""

import builtins
import contextlib
import importlib
import importlib.machinery
import itertools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Optional

# How names of packages begin.
_PACKAGE = "user_file_"
_OTHERS = (Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib")).resolve())


def is_of_a_user(module: str) -> bool:
    """Returns whether a module is this package's, or a user's file or script, and no library's."""
    return module.startswith((_PACKAGE, "tff_agnostic.", "__main__"))


class UserImports(MetaPathFinder):
    """Imports of a file, as if it ran as a script: what lies beside it is found first.

    The modules beside it become those of a package that only the file has. So two files may have
    different modules of one name beside them, and each finds its own whenever it imports: also
    later, in a function that is only called then, or in another thread.

    Args:
        folder: The file's folder, resolved.

    Attributes:
        package: Name of the package.
        sources: Content of every Python file that was imported from beside the file, by the name
            that it has from the folder on.
    """

    def __init__(self, folder: Path) -> None:
        names = (f"{_PACKAGE}{number}" for number in itertools.count())
        self.package = next(name for name in names if name not in sys.modules)
        self.sources: dict[str, bytes] = {}
        self._folder = folder
        self._own: dict[str, bool] = {}
        self._by_name: dict[str, types.ModuleType] = {}
        # What import statements of a module call is looked up here.
        self._builtins = {**vars(builtins), "__import__": self._import}
        # A module that was written a moment ago has to be found.
        importlib.invalidate_caches()
        package = types.ModuleType(self.package)
        package.__path__ = [str(folder)]
        sys.modules[self.package] = package
        sys.meta_path.insert(0, self)

    def prepare(self, module: types.ModuleType) -> None:
        """Makes a module, before it is executed, import as the file does."""
        vars(module)["__builtins__"] = self._builtins

    @contextlib.contextmanager
    def by_name(self) -> Iterator[None]:
        """While code of the user runs: for imports without a statement, such as by `importlib`.

        What these find beside the file is known under its plain name, as long as this lasts.
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
                if file_name and self.is_beside(file_name) and not name.startswith(_PACKAGE):
                    self._by_name[name] = sys.modules.pop(name)
                    with contextlib.suppress(OSError):
                        self.keep(file_name, Path(file_name).read_bytes())

    def keep(self, file_name: str, source: bytes) -> None:
        """Adds to the sources."""
        self.sources[Path(os.path.relpath(file_name, self._folder)).as_posix()] = source

    def is_beside(self, file_name: Optional[str]) -> bool:
        """Returns whether a file is one of the user's: in the folder, or a folder below it."""
        # Python's own frozen modules have such names.
        if file_name is None or file_name.startswith("<"):
            return False
        parents = Path(file_name).resolve().parents
        # An environment, Python or this package may lie in the same folder.
        if "site-packages" in file_name or any(folder in parents for folder in _OTHERS):
            return False
        # A link in the folder lies there, wherever it leads to.
        return self._folder in parents or self._folder in Path(file_name).parents

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[types.ModuleType] = None,
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Finds the submodules of the package; part of Python's import system."""
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
        if level or not self._is_own(top):
            return builtins.__import__(name, globals_, locals_, fromlist or (), level)
        module = builtins.__import__(f"{self.package}.{name}", globals_, locals_, fromlist or ())
        # `import a.b` gives a.
        return module if fromlist else sys.modules[f"{self.package}.{top}"]

    def _is_own(self, name: str) -> bool:
        if name not in self._own:
            self._own[name] = self._lies_beside(name)
        return self._own[name]

    def _lies_beside(self, name: str) -> bool:
        if name in sys.builtin_module_names:
            return False
        spec = importlib.machinery.PathFinder.find_spec(name, [str(self._folder), *sys.path])
        if spec is None:
            return False
        if spec.origin is None:
            # A folder without __init__.py is a module only where there is no better one.
            first = next(iter(spec.submodule_search_locations or ()), None)
            return name not in sys.modules and self.is_beside(first)
        return self.is_beside(spec.origin)


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module from its source as it is now, not as it was when it was compiled last."""

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
