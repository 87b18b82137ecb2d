"""Names from users' data in the output of commands, and names too long for a file system."""

import json
from pathlib import Path

from tests.binaries.harness import Outcome, Process, python_module

# Sets a terminal's title; turns the direction of writing; C1's introducer of a sequence.
_BAD = "\x1b]0;owned\x07\u202e\x9b2J\x7f"
_ESCAPED = "\\x1b]0;owned\\x07\\u202e\\x9b2J\\x7f"
# Longer than a file's name may be, and equal in the first bytes.
_LONG = ("d" * 260, "d" * 260 + "x", "京" * 300)
# A name of a table may turn the direction of writing, but has no control characters.
_TURNED = "fr\u202eance"
_DOMAINS = (_TURNED, "de", *_LONG)


def _run(folder: Path, command: str, *arguments: str) -> Outcome:
    with Process(python_module(command, *arguments), folder) as process:
        return process.outcome()


def _check_output(outcome: Outcome) -> None:
    text = (outcome.out + outcome.err).replace("\u200c", "").replace("\n", "").replace("\t", "")
    assert text.isprintable(), [c for c in text if not c.isprintable()]


def _rows(path: Path, domains: tuple[str, ...] = _DOMAINS) -> Path:
    lines = [f'"who{_BAD}","where{_BAD}","x{_BAD.replace(";", "")}",label']
    for k in range(60 * len(domains)):
        domain = domains[k % len(domains)]
        lines.append(f'"u{k // 5}\u202ex","{domain}",{k % 7},{k // 7 % 2}')
    path.write_text("\n".join(lines) + "\n")
    return path


def _import(folder: Path, *arguments: str) -> Outcome:
    return _run(
        folder,
        "import_data",
        "--format=csv",
        f"--input={_rows(folder / f'rows{_BAD}.csv')}",
        "--output=s.sqlite",
        f"--client_column=who{_BAD}",
        f"--domain_column=where{_BAD}",
        f"--feature_columns=x{_BAD.replace(';', '')}",
        "--label_column=label",
        f"--class_names=no{_BAD},yes",
        *arguments,
    )


def test_import_prints_escaped_names(tmp_path):
    outcome = _import(tmp_path, "--report=report.json")
    assert outcome.status == 0, outcome
    _check_output(outcome)
    assert "fr\\u202eance" in outcome.out and f"no{_ESCAPED}" in outcome.out
    # Files keep the names.
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["splits"]["train"]["domains"]) == set(_DOMAINS)


def test_import_errors_have_escaped_names(tmp_path):
    for arguments in (["--label_column=none"], [f"--domain_names=a{_BAD}:b"]):
        outcome = _import(tmp_path, *arguments)
        assert outcome.error
        _check_output(outcome)
        assert _ESCAPED in outcome.err or "\\x1b" in outcome.err
    assert not (tmp_path / "s.sqlite").exists()


def test_import_refuses_control_characters_in_names(tmp_path):
    rows = _rows(tmp_path / "rows.csv", (f"fr{_BAD}",))
    outcome = _import(tmp_path, f"--input={rows}")
    assert f"expected a name without control characters in where{_ESCAPED}" in outcome.error
    _check_output(outcome)
