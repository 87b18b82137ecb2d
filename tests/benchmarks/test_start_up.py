"""What commands take before they have work to do: what is counted."""

import pytest

from benchmarks.start_up import main


@pytest.mark.slow
def test_lines_and_modules_are_those_of_the_command(capsys):
    main(["--repetitions=1", "--only=train --raunds=1"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "raunds" in line]
    name, seconds, lines, modules = (cell.strip() for cell in row.split("|")[1:-1])
    assert name == "`train --raunds=1`"
    assert float(seconds) > 0
    # The message of an unknown flag; the number of modules is none of the command's lines.
    assert int(lines) == 1
    assert int(modules) > 100
