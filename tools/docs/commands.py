"""Generates the reference of commands: a page per command, with the command's flags.

Flags that many commands share are on separate pages, to which the commands' pages link. The script
runs in the package's environment, does not import TensorFlow, and prints the pages as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from absl import flags

from fleet import cli as fleet
from plan_runner import cli as run_plan
from tff_agnostic.aggregations.registry import AGGREGATIONS, PRIVACIES, UPDATE_AGGREGATORS
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.options import Within, alternatives
from tff_agnostic.program.commands.command_line import DataOptions, RunCommand, defaults_elsewhere
from tff_agnostic.program.commands.registry import COMMANDS, PROGRAM, command
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import REPEATED, Flag, flag_text
from tff_agnostic.program.options.help import Group, flag_groups, own_groups, without_repeated
from tff_agnostic.program.options.tasks import task_flags
from tff_agnostic.program.runs.effects import NEEDS
from tff_agnostic.program.runs.options import RunConfig, run_flags, runtime_flags
from tff_agnostic.runtimes.registry import RUNTIMES

FOLDER = "reference/commands"
# Commands whose arguments are not defined by an options class.
OTHERS = ("fleet", "run_plan")
_KINDS = {
    **{"bool": "true or false", "int": "whole number", "float": "number", "str": "text"},
    "Path": "path",
}
_ITEMS = {"int": "whole numbers", "float": "numbers", "str": "texts", "Path": "paths"}
_FLAG = re.compile(r"--[a-z][\w-]*(?:=[\w./:;,=*-]*[\w*/])?")
_SPECIAL = re.compile(r"([\\`*_\[\]<>{}|#~$])")
_COMPUTED = re.compile(r"\s*\[([^\[\]]+)\]$")
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Shared:
    """A page of flags that many commands share.

    Attributes:
        name: Part of the page's file name, and prefix of the page's anchors.
        title: Heading of the page.
        intro: First paragraph of the page.
        groups: Groups of flags on the page.
    """

    name: str
    title: str
    intro: str
    groups: Sequence[Group]


def shared_pages() -> list[Shared]:
    """Returns the pages of shared flags, such as settings of algorithms or of runtimes."""
    sum_specs: list[Any] = [
        *AGGREGATIONS.values(),
        *UPDATE_AGGREGATORS.values(),
        *PRIVACIES.values(),
    ]
    return [
        Shared(
            "runs",
            "Settings of every run",
            "Every command that trains has these flags. A task may have defaults of its own.",
            flag_groups(RunConfig),
        ),
        Shared(
            "algorithms",
            "Settings of algorithms",
            "A flag applies to the algorithms that its entry names, and commands reject it with "
            "others. What each algorithm does is on the pages of algorithms.",
            _merged((spec.options for spec in ALGORITHMS.values()), run_flags()),
        ),
        Shared(
            "sums",
            "Settings of sums and privacy",
            "These flags apply with `--aggregation`, `--update_aggregator` or `--privacy`, as "
            "each entry says.",
            _merged((spec.options for spec in sum_specs), run_flags()),
        ),
        Shared(
            "runtimes",
            "Settings of runtimes",
            "How rounds are executed. These settings do not change what is learned.",
            _merged((spec.options for spec in RUNTIMES.values()), runtime_flags()),
        ),
        Shared(
            "tasks",
            "Options of tasks",
            "A flag applies to the tasks that its entry names, and commands reject it with others.",
            [Group("Flags of tasks", list(task_flags().values()))],
        ),
    ]


def _merged(kinds: Iterable[type], table: Mapping[str, Flag]) -> list[Group]:
    """Merges the flag groups of several dataclasses.

    Args:
        kinds: The dataclasses.
        table: Flags that replace the dataclasses' flags of the same names, keyed by name. They name
            all algorithms, tasks and sums with the flag.
    """
    groups = without_repeated(group for kind in kinds for group in flag_groups(kind))
    merged: dict[str, Group] = {}
    for group in groups:
        flags_ = [table.get(flag.name, flag) for flag in group.flags]
        before = merged.get(group.heading)
        merged[group.heading] = group._replace(flags=[*(before.flags if before else ()), *flags_])
    return list(merged.values())


def shared_flags(name: str) -> dict[str, list[Flag]]:
    """Returns the flags that a command shares with other commands, keyed by the flags' page."""
    described = command(name)
    if not isinstance(described, RunCommand):
        return {}
    own_names = set(described.options)
    by_page = {
        "runs": [f for g in flag_groups(RunConfig) for f in g.flags if described.has_setting(f)],
        "runtimes": list(runtime_flags().values()) if described.has_runtime else [],
        "tasks": list(task_flags().values())
        if issubclass(described.options_type, DataOptions)
        else [],
    }
    in_config = {flag.name for flag in flag_groups(RunConfig)[0].flags}
    others = [flag for name, flag in run_flags().items() if name not in in_config]
    for flag in filter(described.has_setting, others):
        is_algorithms = {part for part, _ in flag.users} <= {"algorithm"}
        by_page.setdefault("algorithms" if is_algorithms else "sums", []).append(flag)
    pages = {page.name: page for page in shared_pages()}
    return {
        name: [flag for flag in by_page[name] if flag.name not in own_names]
        for name in pages
        if any(flag.name not in own_names for flag in by_page.get(name, ()))
    }


def pages() -> dict[str, str]:
    """Returns the Markdown of all pages, keyed by path in the site."""
    shared = {page.name: page for page in shared_pages()}
    made = {f"{FOLDER}/index.md": _index(shared.values())}
    for name in COMMANDS:
        made[f"{FOLDER}/{name}.md"] = _command_page(name, shared)
    for name, text in (("fleet", _fleet()), ("run_plan", _run_plan())):
        made[f"{FOLDER}/{name}.md"] = text
    for page in shared.values():
        entries = _groups(page.name, page.groups)
        made[f"{FOLDER}/settings_{page.name}.md"] = f"# {page.title}\n\n{page.intro}\n\n{entries}"
    return {path: text.rstrip() + "\n" for path, text in made.items()}


def _index(shared: Iterable[Shared]) -> str:
    names = sorted((*COMMANDS, *OTHERS))
    rows = [f"| [{name}]({name}.md) | {_markdown(_summary(name))} |" for name in names]
    lists = [f"- [{page.title}](settings_{page.name}.md)" for page in shared]
    return "\n".join(
        [
            "# Commands",
            "",
            f"In a checkout a command is `./run NAME`, in an installed package `{PROGRAM} NAME`.",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
            "Flags that many commands have are on pages of their own:",
            "",
            *lists,
            "",
            "Every command takes `--help`, which prints the flags that apply to the task and the "
            "algorithm that you name, and `--helpfull`, which prints all flags. "
            "`--flagfile=FILE` reads flags from a file, one in a line. "
            "[Exit codes](../exit_codes.md) lists what a command returns to the shell.",
        ]
    )


def _doc(name: str) -> str:
    module = "fleet.__main__" if name == "fleet" else f"binaries.{name}"
    return (importlib.import_module(module).__doc__ or "").strip()


def _summary(name: str) -> str:
    return _doc(name).splitlines()[0].rstrip(".")


def _about(name: str) -> str:
    """Returns the introduction of a command's help, with examples as code blocks."""
    parts = []
    for paragraph in _doc(name).split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith("Example: "):
            parts.append(f"```text\n{text.removeprefix('Example: ')}\n```")
        else:
            parts.append(_markdown(text))
    return "\n\n".join(parts)


def _command_page(name: str, shared: Mapping[str, Shared]) -> str:
    described = command(name)
    groups = own_groups(described.options_type)
    parts = [f"# {name}", _about(name), _groups(name, groups)]
    shared_by_page = shared_flags(name)
    if shared_by_page:
        parts.append("## Flags that other commands have, too")
    for page, shown in shared_by_page.items():
        links = ", ".join(f"{{option}}`--{f.name} <{page} --{f.name}>`" for f in shown)
        parts.append(f"[{shared[page].title}](settings_{page}.md):\n\n{links}.")
    return "\n\n".join(part for part in parts if part)


def _groups(program: str, groups: Iterable[Group]) -> str:
    parts = [f"```{{program}} {program}\n```"]
    for group in groups:
        parts.append(f"## {_markdown(group.heading)}")
        parts += [flag_entry(flag) for flag in group.flags]
    return "\n\n".join(parts)


def flag_entry(flag: Flag) -> str:
    """Returns a flag's entry: value, description, default and conditions."""
    text = flag.text
    value = "" if flag.kind is bool else f"={_value_name(flag)}"
    name = f"--[no]{flag.name}" if flag.kind is bool else f"--{flag.name}"
    default = flag.default_text()
    # A default that a run computes is in brackets at the end of the flag's text.
    computed = None if default else _COMPUTED.search(text)
    lines = [_markdown(_COMPUTED.sub("", text) if computed else text)]
    choices = flag.choices
    if flag.name == "task":
        lines = ["What to learn:", "\n".join(_choices({n: t.summary for n, t in DEFAULTS.items()}))]
    elif not all(re.search(rf"\b{re.escape(name)}\b", text) for name in choices):
        lines.append("\n".join(_choices(dict.fromkeys(choices))))
    lines.append(" ".join([f"{_kind(flag)}.", *_conditions(flag), _defaults(flag, computed)]))
    return _entry(flag.name, name, value, lines)


def _entry(flag: str, name: str, value: str, lines: Iterable[str]) -> str:
    shown = f"--{flag}" if name.startswith("--[no]") else name
    switch = f", --no{flag}" if name.startswith("--[no]") else ""
    return f"````{{option}} {shown}{value}{switch}\n\n" + "\n\n".join(lines) + "\n````"


def _choices(choices: Mapping[str, Any]) -> Iterator[str]:
    for name, meaning in choices.items():
        has_text = isinstance(meaning, str) and meaning != name
        yield f"- `{name}`: {_markdown(str(meaning))}" if has_text else f"- `{name}`"


def _value_name(flag: Flag) -> str:
    if flag.kind is tuple:
        return "A,B,..."
    if len(alternatives(flag.hint)) > 1:
        return "TEXT"
    names = {"int": "INTEGER", "float": "NUMBER", "Path": "PATH"}
    return names.get(flag.kind.__name__, "TEXT")


def _kind(flag: Flag) -> str:
    """Describes the type and limits of a flag's value."""
    if flag.members:
        return "One of these, with fields of its own"
    kind = _KINDS[flag.kind.__name__] if flag.kind is not tuple else "values"
    if flag.kind is tuple:
        kind = f"{_ITEMS[flag.item.__name__]}, separated by commas"
    members = alternatives(flag.hint)
    extras = [extra for m in members for extra in getattr(m, "__metadata__", ())]
    limits = [str(extra) for extra in extras if isinstance(extra, Within)]
    if len(members) > 1:
        limits.append("or a path" if Path in members else "or a word")
    if REPEATED in extras:
        return ", ".join(["Text", "may be given several times"])
    return ", ".join([kind.capitalize(), *limits])


def _conditions(flag: Flag) -> Iterator[str]:
    if flag.default is dataclasses.MISSING:
        yield "Required."
    if flag.name in NEEDS:
        other, values = NEEDS[flag.name]
        wanted = " or ".join(f"`{flag_text(value)}`" for value in values)
        yield f"Has no effect unless `--{other}` is {wanted}."
    by_part: dict[str, list[str]] = {}
    for part, name in flag.users:
        by_part.setdefault(part, []).append(f"`{name}`")
    if by_part:
        which = "; ".join(f"`--{part}` is {_any(names)}" for part, names in by_part.items())
        yield f"Applies where {which}."


def _any(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _defaults(flag: Flag, computed: Optional[re.Match[str]]) -> str:
    """Returns a sentence with a flag's default, and with the defaults of tasks and algorithms."""
    default = flag.default_text()
    sentence = f"Default: `{default}`" if default else "No default"
    if computed:
        sentence = f"Default: {_markdown(computed[1])}"
    others = [f"`{text}` for {where}" for where, text in defaults_elsewhere(flag)]
    return f"{'; '.join([sentence, *map(_escaped_outside_code, others)])}."


def _markdown(text: str) -> str:
    """Converts plain text to Markdown, and formats flags as code."""
    shown, at = [], 0
    for flag in _FLAG.finditer(text):
        shown += [_SPECIAL.sub(r"\\\1", text[at : flag.start()]), f"`{flag[0]}`"]
        at = flag.end()
    return "".join([*shown, _SPECIAL.sub(r"\\\1", text[at:])])


def _escaped_outside_code(text: str) -> str:
    parts = text.split("`")
    return "`".join(p if n % 2 else _SPECIAL.sub(r"\\\1", p) for n, p in enumerate(parts))


def _run_plan() -> str:
    values = flags.FlagValues()
    run_plan.define_flags(values)
    entries = []
    for name in values:
        flag = values[name]
        kind = flag.flag_type()
        value = "" if kind == "bool" else f"={_ABSL.get(kind, 'TEXT')}"
        default = (
            "No default." if flag.default is None else f"Default: `{flag_text(flag.default)}`."
        )
        shown = f"--[no]{name}" if kind == "bool" else f"--{name}"
        entries.append(_entry(name, shown, value, [_markdown(flag.help), default]))
    return "\n\n".join(
        ["# run_plan", _about("run_plan"), "```{program} run_plan\n```", "## Flags", *entries]
    )


_ABSL = {"int": "INTEGER", "float": "NUMBER"}


def _fleet() -> str:
    parts = ["# fleet", _about("fleet")]
    for name, about, parser in fleet_parsers():
        parts += [f"## fleet {name}", _sentence(parser.description or about)]
        parts.append(f"```{{program}} fleet {name}\n```")
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                parts.append(_action_entry(action))
    return "\n\n".join(parts)


def fleet_parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yields the name, summary and parser of each command of `fleet`."""
    for action in fleet._parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, parser in action.choices.items():
                yield name, about[name], parser


def _action_entry(action: argparse.Action) -> str:
    flag = action.option_strings[-1].removeprefix("--")
    metavar = action.metavar if isinstance(action.metavar, str) else flag.upper()
    value = "" if action.nargs == 0 else f"={metavar}"
    # Remove the default, for which the entry has a separate sentence.
    text = (action.help or "").removesuffix(" (%(default)s)")
    lines = [_sentence(text % vars(action))] if text else []
    lines += [] if action.choices is None else [f"One of: {', '.join(map(str, action.choices))}."]
    has_default = action.default not in (None, False, argparse.SUPPRESS)
    if action.required:
        lines.append("Required.")
    elif has_default and "%(default)" not in text:
        lines.append(f"Default: `{action.default}`.")
    return _entry(flag, f"--{flag}", value, lines)


def _sentence(text: str) -> str:
    """Converts a help text to a sentence with a capital letter and a full stop."""
    first = text.partition(" ")[0]
    text = text[:1].upper() + text[1:] if first.isalpha() else text
    return _markdown(text if text.endswith((".", ")")) else f"{text}.")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Prints all pages as JSON, keyed by path."""
    argparse.ArgumentParser(description=textwrap.fill(__doc__ or "", _WIDTH)).parse_args(arguments)
    print(json.dumps(pages()))


if __name__ == "__main__":
    main()
