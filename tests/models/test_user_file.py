"""Users' files that cannot be run, or fail: one clear line, or their own lines."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import golden
from tests.models.user_files import error_lines, error_of, model_file
from tff_agnostic import user_code


@golden.values
def test_files_without_the_function(tmp_path, case: Any):
    path = tmp_path / "my_model.py"
    if case is not None:
        path.write_bytes(case if isinstance(case, bytes) else case.encode())
    found = error_of(path)
    assert "\n" not in found
    return found


def test_a_folder_is_no_file(tmp_path):
    assert error_of(tmp_path) == (
        f"{tmp_path}: expected a Python file, cannot read it (Is a directory)"
    )


def test_what_has_no_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "pipe.py", Path("/dev/zero")):
        message = f"{path}: expected a Python file, found a pipe, a socket or a device"
        assert error_of(path) == message


@pytest.mark.parametrize("error", ["GeneratorExit", "SystemExit", "StopIteration", "Mine"])
def test_whatever_a_file_raises_is_told(tmp_path, error):
    """Also what is no `Exception`, with which Python would end."""
    text = f"class Mine(BaseException): pass\n\nraise {error}(0)\n"
    lines = error_lines(model_file(tmp_path, text))
    assert lines[0].endswith("my_model.py: it fails:")
    assert lines[-2] == f"    raise {error}(0)"
    assert lines[-1].endswith(f"{error}: 0")


def test_a_file_that_runs_for_long_is_said_to_be_waited_for(tmp_path, monkeypatch):
    """It is not ended: here it waits for the very line."""
    written = tmp_path / "written"
    with open(written, "w") as errors:
        monkeypatch.setattr(user_code, "_LONG_SECONDS", 0.01)
        monkeypatch.setattr(sys, "stderr", errors)
        text = f"""
            from pathlib import Path

            while not Path({str(written)!r}).read_text().endswith("\\n"):
                pass
            """
        path = model_file(tmp_path, text)
        assert error_of(path).endswith("expected a function build_model(data), found no function")
    assert written.read_text() == (
        f"note: waiting for {path}: it has run for 0.01 s and has not ended (to end the command, "
        "press Ctrl-C twice)\n"
    )


def test_a_file_that_fails_shows_its_own_lines_only(tmp_path):
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


@pytest.mark.parametrize(
    "statement",
    ["import tff_agnostic.quantities", "from tff_agnostic.settings import no_such_name"],
)
def test_a_file_that_imports_what_has_moved_is_shown_the_table(tmp_path, statement):
    lines = error_lines(model_file(tmp_path, f"{statement}\n"))
    assert lines[-1] == (
        "CHANGELOG.md says where modules and names are now, in its table 'before / now'"
    )
    table = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert (
        "| before | now |\n|---|---|\n| `tff_agnostic.quantities` | `tff_agnostic.report_" in table
    )


@pytest.mark.parametrize(
    ("statement", "last"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("print(undefined)", "NameError: name 'undefined' is not defined"),
    ],
)
def test_a_file_that_fails_while_it_is_loaded(tmp_path, statement, last):
    path = model_file(tmp_path, f"{statement}\n")
    assert error_lines(path) == [
        f"{path}: it fails:",
        f'  File "{path}", line 1, in <module>',
        f"    {statement}",
        last,
    ]
