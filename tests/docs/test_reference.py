"""The reference of commands has every flag, with its default; pages of the site have an order."""

import re
import tomllib
from pathlib import Path

import pytest

from tff_agnostic import settings
from tff_agnostic.commands import COMMANDS, command
from tff_agnostic.run.options import options_of_runs, options_of_runtimes, options_of_tasks
from tools.docs import commands, sources

_ENTRY = re.compile(r"^````\{option\} --(\w+)(.*)\n\n((?:.|\n)*?)\n````$", re.MULTILINE)
_LINK = re.compile(r"\{option\}`--(\w+) <(\w+) --(\w+)>`")


@pytest.fixture(scope="module")
def pages():
    return commands.pages()


def entries(pages, page):
    """The texts of a page's flags, by their names."""
    return {
        found[1]: f"{found[2]}\n{found[3]}"
        for found in _ENTRY.finditer(pages[f"{commands.FOLDER}/{page}.md"])
    }


@pytest.fixture
def defined(monkeypatch):
    """Returns the flags that a command defines when it starts, by its name."""
    names = []

    def note(name, default, help_):
        names.append(name)

    monkeypatch.setattr("sys.argv", ["command"])
    monkeypatch.setattr("absl.flags.DEFINE_multi_string", note)
    for kind in settings._DEFINE:
        monkeypatch.setitem(settings._DEFINE, kind, note)

    def of_command(name):
        names.clear()
        command(name).define_flags()
        return set(names)

    return of_command


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_commands_page_has_every_flag_that_the_command_defines(pages, defined, name):
    linked = _LINK.findall(pages[f"{commands.FOLDER}/{name}.md"])
    assert all(shown == flag for shown, _, flag in linked)
    assert all(flag in entries(pages, f"settings_{at}") for _, at, flag in linked)
    own = list(entries(pages, name))
    assert sorted([*own, *(flag for flag, _, _ in linked)]) == sorted(defined(name))


def test_every_entry_has_the_default_and_what_it_needs(pages):
    found = {}
    for page in commands.shared_pages():
        found |= entries(pages, f"settings_{page.name}")
    tables = (options_of_runs(), options_of_runtimes(), options_of_tasks())
    options = {flag: option for table_ in tables for flag, option in table_.items()}
    assert set(found) == set(options)
    of_commands = [(entries(pages, name), command(name).options) for name in COMMANDS]
    for shown, known in [(found, options), *of_commands]:
        for flag, option in known.items():
            default = option.default_text()
            assert default == "" or f"Default: `{default}`" in shown[flag], flag
            if option.needs:
                assert f"unless `--{option.needs[0]}` is " in shown[flag]
            assert all(
                f"`{owner}`" in shown[flag] for part, owner in option.owners if part != "task"
            )
    assert "Whole number, at least 1. Default: `100`; `200` for digits;" in found["rounds"]
    assert found["pooled"].startswith(", --nopooled\n")


def test_commands_that_describe_flags_in_their_own_way_have_theirs(pages):
    assert {"plan", "verify", "max_memory_gb"} <= set(entries(pages, "run_plan"))
    assert "Default: `2.0`." in entries(pages, "run_plan")["max_memory_gb"]
    fleet = pages[f"{commands.FOLDER}/fleet.md"]
    assert [f"## fleet {name}" in fleet for name in ("keys", "server", "node", "demo")] == [
        True
    ] * 4
    assert "%(default)s" not in fleet


def _page(path, links=(), text="# A page\n", is_stub=False):
    return sources.Page(path, text, tuple(links), is_stub)


def _order(text):
    return re.findall(r"^(?!:|`)(\S+\.md)$", text.partition("```{toctree}")[2], re.MULTILINE)


def test_pages_stand_in_the_order_of_their_folders_links():
    given = [
        _page("index.md", ["b.md", "how_to/z.md", "a.md"]),
        _page("a.md"),
        _page("b.md"),
        _page("how_to/index.md", ["how_to/z.md", "how_to/y.md"]),
        _page("how_to/y.md"),
        _page("how_to/z.md"),
        _page("how_to/not_linked.md"),
        _page("old.md", is_stub=True),
        _page("results.md", ["results/two.md"]),
        _page("results/one.md"),
        _page("results/two.md"),
    ]
    texts = sources.with_order({page.path: page for page in given})
    assert _order(texts["index.md"]) == ["b.md", "how_to/index.md", "a.md", "results.md"]
    assert _order(texts["how_to/index.md"]) == ["z.md", "y.md", "not_linked.md"]
    # A folder without an index has the page of its name.
    assert _order(texts["results.md"]) == ["results/two.md", "results/one.md"]
    assert texts["old.md"].startswith("---\norphan: true")


def test_pages_that_the_tool_wrote_for_old_paths_are_stubs():
    docs = Path(sources.__file__).parents[2] / sources.DOCS
    stubs = {p for p in docs.rglob("*.md") if sources.is_stub(p.read_text())}
    assert stubs == {docs / old for old in tomllib.loads((docs / "moved.toml").read_text())}
