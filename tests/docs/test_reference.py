"""Reference pages, which are generated from code, and pages that the site converts."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from tests.support.commands import defined_flags
from tff_agnostic.program.commands.registry import COMMANDS, command
from tff_agnostic.program.options.tasks import task_flags
from tff_agnostic.program.runs.effects import NEEDS
from tff_agnostic.program.runs.options import run_flags, runtime_flags
from tools.docs import api, commands, plain, sources

ROOT = Path(__file__).resolve().parents[2]

_ENTRY = re.compile(r"^````\{option\} --(\w+)(.*)\n\n((?:.|\n)*?)\n````$", re.MULTILINE)
_LINK = re.compile(r"\{option\}`--(\w+) <(\w+) --(\w+)>`")


@pytest.fixture(scope="module")
def pages():
    return commands.pages()


def entries(pages, page):
    return {
        match[1]: f"{match[2]}\n{match[3]}"
        for match in _ENTRY.finditer(pages[f"{commands.FOLDER}/{page}.md"])
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_page_has_every_flag(pages, name):
    linked = _LINK.findall(pages[f"{commands.FOLDER}/{name}.md"])
    assert all(shown == flag for shown, _, flag in linked)
    assert all(flag in entries(pages, f"settings_{at}") for _, at, flag in linked)
    unlinked = list(entries(pages, name))
    assert sorted([*unlinked, *(flag for flag, _, _ in linked)]) == sorted(
        defined_flags(importlib.import_module(f"binaries.{name}"))
    )


def test_entries_have_defaults_and_needs(pages):
    entry_texts = {}
    for page in commands.shared_pages():
        entry_texts |= entries(pages, f"settings_{page.name}")
    tables = (run_flags(), runtime_flags(), task_flags())
    options = {flag: option for table_ in tables for flag, option in table_.items()}
    assert set(entry_texts) == set(options)
    command_entries = [(entries(pages, name), command(name).options) for name in COMMANDS]
    for shown, defined_options in [(entry_texts, options), *command_entries]:
        for flag, option in defined_options.items():
            default = option.default_text()
            assert default == "" or f"Default: `{default}`" in shown[flag], flag
            if flag in NEEDS:
                assert f"unless `--{NEEDS[flag][0]}` is " in shown[flag]
            assert all(f"`{user}`" in shown[flag] for _, user in option.users)
    assert "Whole number, at least 1. Default: `100`; `200` for digits;" in entry_texts["rounds"]
    assert entry_texts["pooled"].startswith(", --nopooled\n")


@pytest.mark.slow
def test_python_reference_has_each_public_name_once():
    texts, files = api.pages(ROOT)
    documented = re.findall(r"^\.\. autoapi\w+:: ([\w.]+)$", "".join(texts.values()), re.MULTILINE)
    assert len(set(documented)) == len(documented)
    names = {name.rpartition(".")[2] for name in documented}
    sources_ = api.Sources(ROOT)
    for module in api.PUBLIC:
        public = sources_.public_names(module)
        assert {n for n in public if sources_.definition(module, n).directive} <= names
    # The page also has the classes that public functions return.
    assert {"tff_agnostic.program.FinishedRun", "tff_agnostic.program.ByGroup"} <= set(documented)
    declared = ast.parse(files["tff_agnostic/program.py"])
    (compare,) = [node for node in declared.body if getattr(node, "name", "") == "compare_runs"]
    assert [arg.arg for arg in compare.args.args] == ["rows", "folder"]
    assert [type(node) for node in compare.body] == [ast.Expr]


def test_run_plan_and_fleet_have_their_flags(pages):
    assert {"plan", "verify", "max_memory_gb"} <= set(entries(pages, "run_plan"))
    assert "Default: `2.0`." in entries(pages, "run_plan")["max_memory_gb"]
    fleet = pages[f"{commands.FOLDER}/fleet.md"]
    assert [f"## fleet {name}" in fleet for name in ("keys", "server", "node", "demo")] == [
        True
    ] * 4
    assert "%(default)s" not in fleet


def test_sequence_diagrams_become_tables():
    page = (
        "A\n\n```mermaid\nsequenceDiagram\n    participant S as Server\n    S->>S: {}\n```\n\nB\n"
    )
    table = "A\n\n| from | to | what |\n|---|---|---|\n| Server | itself | adds |\n\nB\n"
    assert plain.with_tables(page.format("adds")) == table
    unknown = page.format("adds\n    loop every day")
    assert plain.with_tables(unknown) == unknown
    for path in (ROOT / "docs").rglob("*.md"):
        assert "```mermaid" not in plain.with_tables(path.read_text()), path


def test_notebook_becomes_a_page_with_outputs():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n"]},
        {
            "cell_type": "code",
            "source": ["print(1)\n", "2"],
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"output_type": "execute_result", "data": {"text/plain": ["```"]}},
                {"output_type": "display_data", "data": {"image/png": "", "text/plain": ["<F>"]}},
            ],
        },
    ]
    page = plain.notebook_page(json.dumps({"cells": cells}), "a.ipynb")
    title, download, *blocks = page.strip().split("\n\n")
    assert title == "# Title" and "(a.ipynb)" in download
    assert blocks == ["```python\nprint(1)\n2\n```", "```text\n1\n```", "````text\n```\n````"]
    assert sources.site_path("docs/tutorials/a.ipynb") == "tutorials/a_notebook.md"
