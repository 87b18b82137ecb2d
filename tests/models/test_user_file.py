"""Users' Python files: errors, imports of neighbouring modules, and digests."""

import contextlib
import logging
import os
import sys
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tests.support.model_files import error_lines, load_error, model_file
from tff_agnostic.base import user_code
from tff_agnostic.base.files import digest
from tff_agnostic.base.user_code import UserFile


@golden.values
def test_unusable_user_file_raises_one_line_error(tmp_path, case: Any):
    path = tmp_path / "my_model.py"
    path.write_bytes(case if isinstance(case, bytes) else case.encode())
    return load_error(path)


def test_folders_pipes_and_devices_raise_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert load_error(tmp_path).startswith(f"{tmp_path}: expected a Python file, cannot read it")
    for path in (tmp_path / "pipe.py", Path("/dev/zero")):
        message = f"{path}: expected a Python file, found a pipe, a socket or a device"
        assert load_error(path) == message


def test_error_in_user_file_shows_its_line(tmp_path):
    # An error that is not an `Exception` would otherwise end Python.
    path = model_file(tmp_path, "class Mine(BaseException): pass\nraise Mine(0)\n")
    *lines, reason = error_lines(path)
    place = f'  File "{path}", line 2, in <module>'
    assert lines == [f"{path}: it fails:", place, "    raise Mine(0)"]
    assert reason.endswith("Mine: 0")


def test_slow_user_file_prints_progress(tmp_path, monkeypatch):
    written = tmp_path / "written"
    logger, handler = logging.getLogger(user_code.__name__), logging.FileHandler(written)
    monkeypatch.setattr(user_code, "_LONG_SECONDS", 0.01)
    logger.addHandler(handler)
    with contextlib.closing(handler):
        text = f"""
            from pathlib import Path

            while not Path({str(written)!r}).read_text().endswith("\\n"):
                pass
            """
        path = model_file(tmp_path, text)
        assert load_error(path).endswith("expected a function build_model(data), found no function")
    logger.removeHandler(handler)
    assert written.read_text().startswith(f"note: waiting for {path}: ")


def test_traceback_shows_users_lines_only(tmp_path):
    (tmp_path / "parts.py").write_text("def units(data):\n    return 1 / len(data.y_shape)\n")
    text = """
        import json
        import parts

        def helper(data):
            return json.loads("[" if parts.units(data) else "]")

        def build_model(data):
            return helper(data)
        """
    path = model_file(tmp_path, text)
    assert error_lines(path) == [
        f"{path}: build_model fails:",
        f'  File "{path}", line 9, in build_model',
        "    return helper(data)",
        f'  File "{path}", line 6, in helper',
        '    return json.loads("[" if parts.units(data) else "]")',
        f'  File "{tmp_path / "parts.py"}", line 2, in units',
        "    return 1 / len(data.y_shape)",
        "ZeroDivisionError: division by zero",
    ]


# --- Each user's file has its own modules and definitions


def _file(folder: Path, text: str, neighbours: Mapping[str, str] = {}) -> UserFile:
    for name, content in {**neighbours, "mine.py": text}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content))
    return UserFile(folder / "mine.py")


def _result(file: UserFile, name: str = "f") -> Any:
    with file.running(name):
        return file.function(name, "x")(None)


def test_each_user_file_has_its_own_neighbours(tmp_path):
    text = """
        import parts
        def f(x): return parts.NAME
        def later(x):
            import lazy
            return lazy.name()
        """
    lazy = """
        def name():
            import parts
            return parts.NAME
        """
    files = {
        name: _file(tmp_path / name, text, {"parts.py": f"NAME = {name!r}", "lazy.py": lazy})
        for name in ("a", "b")
    }
    for name in ("a", "b", "a"):
        assert _result(files[name]) == name
        # `later` imports its neighbour when it is called, as functions do during tracing.
        assert files[name].function("later", "x")(None) == name
    assert "parts" not in sys.modules
    assert "lazy" not in sys.modules


@pytest.mark.parametrize(
    "statements",
    [
        "import package.part\nfound = package.part.NAME",
        "from package.part import *\nfound = NAME",
        "import package.relative\nfound = package.relative.NAME",
        "import importlib\nfound = importlib.import_module('package.part').NAME",
        "import folder.part\nfound = folder.part.NAME",
        # The package has the name of the importing file.
        "from mine import part\nfound = part.NAME",
    ],
)
def test_all_import_statements_find_neighbours(tmp_path, statements):
    neighbours = {
        "package/__init__.py": "from package.part import NAME",
        "package/part.py": "import other\nNAME = other.NAME",
        "package/relative.py": "from . import part\nfrom .part import NAME",
        "folder/part.py": "from package import NAME",
        "mine/__init__.py": "",
        "mine/part.py": "NAME = 7",
        "other.py": "NAME = 7",
    }
    names = set(sys.modules)
    assert _result(_file(tmp_path, f"{statements}\ndef f(x): return found", neighbours)) == 7
    assert not {"package", "folder", "other", "mine"} & (set(sys.modules) - names)


def test_neighbouring_modules_precede_installed_ones(tmp_path):
    # `tree` is the module of dm-tree, which TFF imports.
    pytest.importorskip("tree")
    text = "import tree\ndef f(x): return tree.NAME"
    file = _file(tmp_path, text, {"tree.py": "NAME = 'theirs'"})
    assert _result(file) == "theirs"
    assert not hasattr(sys.modules["tree"], "NAME")


def test_neighbouring_data_folder_hides_no_module(tmp_path):
    text = "import numpy as m\ndef f(x): return m.__file__"
    file = _file(tmp_path, text, {"numpy/data.txt": ""})
    assert _result(file) == sys.modules["numpy"].__file__


def test_symbolic_link_is_a_neighbouring_module(tmp_path):
    (tmp_path / "shared.py").write_text("NAME = 1")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "parts.py").symlink_to("../shared.py")
    file = _file(tmp_path / "a", "import parts\ndef f(x): return parts.NAME")
    assert _result(file) == 1
    assert "parts" not in sys.modules


def test_neighbouring_module_does_not_shadow_functions(tmp_path):
    text = """
        def parts(): return 'own'
        def f(x):
            import parts as other
            return parts(), other.NAME
        """
    assert _result(_file(tmp_path, text, {"parts.py": "NAME = 1"})) == ("own", 1)


def test_changed_neighbouring_module_is_reloaded(tmp_path):
    text = "import parts\ndef f(x): return parts.NAME"
    for number in range(3):
        # Python's bytecode cache compares only file sizes and times in seconds.
        assert _result(_file(tmp_path, text, {"parts.py": f"NAME = {number}"})) == number
    assert not (tmp_path / "__pycache__").exists()


_OPTIONS = """
    {}
    import dataclasses
    from typing import Optional

    class Kind:
        pass

    @dataclasses.dataclass(frozen=True)
    class Options:
        size: int = 3
        kind: "Optional[Kind]" = None
"""


@pytest.mark.parametrize(
    ("where", "future"), [("file", ""), ("module", "from __future__ import annotations")]
)
def test_type_hints_refer_to_each_files_classes(tmp_path, future, where):
    text, neighbours = textwrap.dedent(_OPTIONS.format(future)), {}
    if where == "module":
        neighbours, text = {"parts.py": text}, "from parts import Kind, Options"
    classes = set()
    for folder in ("a", "b", "a"):
        file = _file(tmp_path / folder, text, neighbours)
        options, kind = (file.value(name, "a class", callable) for name in ("Options", "Kind"))
        assert typing.get_type_hints(options) == {"size": int, "kind": typing.Optional[kind]}
        assert options() == options(3)
        classes.add(options)
    assert len(classes) == 3


@golden.values
def test_missing_or_wrong_value_in_file_raises(tmp_path, case):
    arguments = ("SIZE", "a number", lambda value: isinstance(value, int))
    assert _file(tmp_path, "SIZE = 3\n").value(*arguments) == 3
    return golden.refusal(_file(tmp_path, case).value, *arguments)


_NEIGHBOURS = {"parts.py": "import more", "more.py": "A = 1", "unused.py": "A = 1"}


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('parts')\n",
        "def f(x):\n    import parts\n",
    ],
)
@pytest.mark.parametrize(("changed", "same"), [("parts.py", 0), ("more.py", 0), ("unused.py", 1)])
def test_digest_covers_imported_modules(tmp_path, text, changed, same):
    def digest(folder: str, **neighbours: str) -> str:
        file = _file(tmp_path / folder, text, {**_NEIGHBOURS, **neighbours})
        if "def" in text:
            _result(file)
        return file.digests()

    first = digest("a")
    assert digest("a") == digest("b") == first
    assert (digest("b", **{changed: _NEIGHBOURS[changed] + " # Changed"}) == first) == bool(same)


def test_digest_without_neighbours_covers_the_file(tmp_path):
    file = _file(tmp_path, "import json, tff_agnostic\n", _NEIGHBOURS)
    assert file.digests() == {"file": digest((tmp_path / "mine.py").read_bytes())}
