"""Commands escape the names from users' data that they print."""

from pathlib import Path

from tests.support.commands import Outcome, Process, python_module
from tff_agnostic.base.files import read_json

# Characters that set a terminal's title, reverse writing, start a C1 sequence, and delete.
_BAD = "\x1b]0;owned\x07\u202e\x9b2J\x7f"
_ESCAPED = "\\x1b]0;owned\\x07\\u202e\\x9b2J\\x7f"
# Domain names may reverse the writing direction, but must not have control characters.
_DOMAINS = ("fr\u202eance", "de", "d" * 260)


def _import(folder: Path, domains: tuple[str, ...], *arguments: str) -> Outcome:
    rows = folder / f"rows{_BAD}.csv"
    lines = [f'"who{_BAD}","where{_BAD}",x,label']
    lines += [f'"u{k // 5}\u202ex","{domains[k % len(domains)]}",{k % 7},0' for k in range(180)]
    rows.write_text("\n".join(lines) + "\n")
    flags = (
        *("--format=csv", f"--input={rows}", "--output=s.sqlite", "--feature_columns=x"),
        *(f"--client_column=who{_BAD}", f"--domain_column=where{_BAD}", "--label_column=label"),
        f"--class_names=no{_BAD},yes",
    )
    with Process(python_module("import_data", *flags, *arguments), folder) as process:
        outcome = process.outcome()
    text = (outcome.out + outcome.err).replace("\u200c", "").replace("\n", "").replace("\t", "")
    assert text.isprintable(), [c for c in text if not c.isprintable()]
    return outcome


def test_import_prints_escaped_names(tmp_path):
    outcome = _import(tmp_path, _DOMAINS, "--report=report.json")
    assert outcome.status == 0, outcome
    assert "fr\\u202eance" in outcome.out and f"no{_ESCAPED}" in outcome.out
    # Files have the names without escapes.
    report = read_json(tmp_path / "report.json")
    assert set(report["splits"]["train"]["domains"]) == set(_DOMAINS)


def test_import_rejects_control_characters_in_names(tmp_path):
    outcome = _import(tmp_path, (f"fr{_BAD}",))
    assert f"expected a name without control characters in where{_ESCAPED}" in outcome.error
    assert not (tmp_path / "s.sqlite").exists()
