"""Printed text: control characters are escaped, in strings and in output streams."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from plan_runner import terminal as runner_terminal
from tests.support.commands import ROOT
from tff_agnostic.base import terminal
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.terminal import PrintableStream, escape_output, printable, unescaped

_TITLE = "\x1b]0;title\x07"


@pytest.mark.parametrize(
    "character",
    [
        *map(chr, (*range(32), *range(0x7F, 0xA0))),
        *"\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\udcff",
    ],
)
def test_control_characters_are_escaped(character):
    for module in (terminal, runner_terminal):
        actual = module.printable(f"a{character}b")
        assert actual.isprintable()
        assert actual == f"a{character.encode('unicode_escape').decode()}b"


@pytest.mark.parametrize("text", ["Grüße", "क्\u200dष", "👩\u200d🔬", "東京\u3000都", "\\x1b", ""])
def test_printable_keeps_scripts_and_emoji(text):
    assert printable(text) == text == runner_terminal.printable(text)


def test_output_is_escaped_once(capsys, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    for _ in range(2):
        escape_output()
    print(f"a\t{_TITLE}\nb")
    sys.stderr.writelines([f"c{_TITLE}\n"])
    assert isinstance(sys.stdout, PrintableStream)
    assert not isinstance(unescaped(sys.stdout), PrintableStream)
    actual = capsys.readouterr()
    assert actual.out == "a\t\\x1b]0;title\\x07\nb\n"
    assert actual.err == "c\\x1b]0;title\\x07\n"


def test_user_error_messages_are_printable():
    assert str(UserError(f"a.csv: found {_TITLE}\u202e")) == (
        "a.csv: found \\x1b]0;title\\x07\\u202e"
    )


def test_progress_bar_escapes_names_in_terminal():
    program = (
        (
            "from tff_agnostic.base.terminal import escape_output; escape_output()\n"
            "from tff_agnostic.program.progress import LongWork\n"
            "with LongWork('compare', 2, 'trials') as work:\n"
            f"    work.say('step {_TITLE}')\n"
            f"    work.note('note {_TITLE}')\n"
        )
        .replace("\x1b", "\\x1b")
        .replace("\x07", "\\x07")
    )
    terminal, end = pty.openpty()
    # Set the terminal's width, which a progress bar needs.
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    output = b""
    try:
        while block := os.read(terminal, 1 << 16):
            output += block
    except OSError:
        # Linux raises an error when the other side of a terminal closes.
        pass
    finally:
        os.close(terminal)
        assert child.wait() == 0, output
    text = output.decode()
    assert "\x1b]" not in text and "\x07" not in text
    assert "step \\x1b]0;title\\x07" in text
    # The bar is cleared before the note, which has its own line.
    assert "\rnote \\x1b]0;title\\x07\r\n" in text
