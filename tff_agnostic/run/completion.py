"""Completion for bash and zsh: a script with a table of commands, flags and their values.

The table is made from the same options as the flags and `--help`, when the script is printed. The
shell then answers by itself: no Python is started when the user presses tab.

One function in the script, which both shells and any POSIX shell with `local` understand, gets the
words of a command line and prints what the last one may become. The rest shows it in each shell.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.commands import COMMANDS, OTHER_COMMANDS, PROGRAM, command
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.run.command_line import DataOptions, RunCommand, default_for_task
from tff_agnostic.run.options import (
    PARTS_OF_RUNS,
    RunConfig,
    options_of_runs,
    options_of_runtimes,
    options_of_tasks,
)
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import Option, settings_in
from tff_agnostic.tasks.registry import TASKS

# What is chosen on a command line, and decides which flags there are.
_PARTS: dict[str, Registry] = {"task": TASKS, **PARTS_OF_RUNS, "runtime": RUNTIMES}
_OF_ALL = ("help", "helpfull", "flagfile=")

_COMPLETE = r"""
# Prints what the last of some words may become: a command, a flag or a whole --flag=value.
_tff_agnostic_complete() {
  [ -z "${ZSH_VERSION-}" ] || emulate -L sh
  local command task algorithm aggregation update_aggregator privacy runtime
  local word flag value part filter all known
  task= algorithm= aggregation= update_aggregator= privacy= runtime= flag=
  shift
  if [ $# -le 1 ]; then
    _tff_agnostic_beginning "${1-}" "" $(_tff_agnostic_table commands)
    return
  fi
  command=$(printf %s "$1" | tr - _)
  shift
  while [ $# -gt 1 ]; do
    word=$1
    shift
    case $word in
      --*=*) flag=${word%%=*} value=${word#*=} ;;
      --*)
        flag=$word
        continue
        ;;
      *) value=$word ;;
    esac
    case $flag in
      --task) task=$value ;;
      --algorithm | --algorithms) algorithm=$(printf %s "$value" | tr , ' ') ;;
      --arms) algorithm=$(printf %s "$value" | tr ';' '\n' | sed 's/:.*//; s/.*=//') ;;
      --aggregation) aggregation=$value ;;
      --update_aggregator) update_aggregator=$value ;;
      --privacy) privacy=$value ;;
      --runtime) runtime=$value ;;
    esac
    flag=
  done
  case $1 in
    --*=*,*)
      flag=${1%%=*} value=${1#*=}
      for word in $(_tff_agnostic_table "list ${flag#--}"); do
        _tff_agnostic_beginning "$1" "${1%,*}," "$word"
      done
      return
      ;;
    --*=*)
      flag=${1%%=*}
      _tff_agnostic_beginning "$1" "$flag=" $(_tff_agnostic_table "values ${flag#--}")
      return
      ;;
  esac
  known=$(_tff_agnostic_table "values ${flag#--}")
  if [ -n "$flag" ] && [ "$known" != "true false" ]; then
    # Of --flag value, the value.
    _tff_agnostic_beginning "$1" "" $known
    return
  fi
  all=$(_tff_agnostic_table "flags $command")
  for part in $(_tff_agnostic_table "parts $command"); do
    # Of the settings of runs some commands have a part.
    filter=$(_tff_agnostic_table "only $command")
    case $part in
      task)
        [ -n "$task" ] || task=$(_tff_agnostic_table "default task $command")
        value=$task filter=
        ;;
      algorithm) value=$algorithm ;;
      aggregation) value=$aggregation ;;
      update_aggregator) value=$update_aggregator ;;
      privacy) value=$privacy ;;
      runtime) value=$runtime filter= ;;
    esac
    [ -n "$value" ] || value=$(_tff_agnostic_table "default $part $task")
    [ -n "$value" ] || value=$(_tff_agnostic_table "default $part")
    for word in $value; do
      # A file of the user's may have what any algorithm has.
      case $word in *.py) word="of any" ;; esac
      for word in $(_tff_agnostic_table "flags $part $word"); do
        case " $all " in *" $word "*) continue ;; esac
        [ -z "$filter" ] || case " $filter " in *" $word "*) ;; *) continue ;; esac
        all="$all $word"
      done
    done
  done
  case $1 in
    --no*) for word in $all; do case $word in *= | help*) ;; *) all="$all no$word" ;; esac done ;;
  esac
  _tff_agnostic_beginning "$1" -- $all
}

# Prints the words that, after a prefix, begin with what was typed.
_tff_agnostic_beginning() {
  [ -z "${ZSH_VERSION-}" ] || emulate -L sh
  local typed prefix word
  typed=$1 prefix=$2
  shift 2
  for word; do
    case $prefix$word in "$typed"*) printf '%s\n' "$prefix$word" ;; esac
  done
}
"""
_BASH = r"""
_tff_agnostic_in_bash() {
  local words=() word i cut=
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    # bash parts --flag=value into three words.
    if ((i > 1)) && [[ ${words[-1]} == --* && ($word == = || ${words[-1]} == *=) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  mapfile -t COMPREPLY < <(_tff_agnostic_complete "${words[@]}")
  if [[ ${words[-1]} == --*=* && $COMP_WORDBREAKS == *=* ]]; then
    cut=${words[-1]%%=*}=
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
  fi
  if ((${#COMPREPLY[@]} == 0)); then
    compopt -o default 2>/dev/null
  elif [[ ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
  return 0
}
complete -F _tff_agnostic_in_bash PROGRAM ./run
"""
_ZSH = r"""
_tff_agnostic_in_zsh() {
  local -a found
  found=(${(f)"$(_tff_agnostic_complete "${(@)words[1,CURRENT]}")"})
  if (( ${#found} )); then
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
  else
    compset -P '*='
    _files
  fi
}
(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }
compdef _tff_agnostic_in_zsh PROGRAM
compdef -p _tff_agnostic_in_zsh '*/run'
"""
SHELLS: Registry[str] = Registry("shell", {"bash": _BASH, "zsh": _ZSH})


def script(shell: str) -> str:
    """Returns the script for a shell."""
    entries = [
        f"    {shlex.quote(name)}) echo {shlex.quote(' '.join(words))} ;;"
        for name, words in table().items()
        if words
    ]
    of_table = ["_tff_agnostic_table() {", "  case $1 in", *entries, "  esac", "}"]
    of_shell = SHELLS.given("completion", shell).replace("PROGRAM", PROGRAM)
    return "\n".join([*of_table, _COMPLETE.strip(), of_shell.strip()])


def table() -> dict[str, list[str]]:
    """Returns the words of each kind, by what the script asks for.

    Flags end with "=" unless they are switches.
    """
    runs = options_of_runs()
    words = {"commands": sorted({*COMMANDS, *OTHER_COMMANDS, *_of_checkout()})}
    words["flags completion"] = []
    every = [*runs.values(), *options_of_tasks().values(), *options_of_runtimes().values()]
    for name in COMMANDS:
        described = command(name)
        own = list(described.options.values())
        every += own
        flags = _flags(own)
        if isinstance(described, RunCommand):
            allowed = [option for option in runs.values() if described.has_setting(option)]
            flags += _flags(o for o in settings_in(RunConfig) if described.has_setting(o))
            parts = [
                *(["task"] if issubclass(described.own, DataOptions) else []),
                *PARTS_OF_RUNS,
                *(["runtime"] if described.has_runtime else []),
            ]
            words[f"parts {name}"] = parts
            if len(allowed) < len(runs):
                # Without words nothing would be left out.
                words[f"only {name}"] = _flags(allowed) or ["no_setting"]
        if default := getattr(described.own, "task", None):
            words[f"default task {name}"] = [default]
        words[f"flags {name}"] = list(dict.fromkeys([*flags, *_OF_ALL]))
    for part, names in _parts():
        for name, options in names:
            words[f"flags {part} {name}"] = _flags(options)
    words["flags algorithm of any"] = _flags(
        o for o in runs.values() if {part for part, _ in o.owners} == {"algorithm"}
    )
    for part in (*PARTS_OF_RUNS, "runtime"):
        for task in (None, *TASKS):
            default = default_for_task(task, part, [])
            words[" ".join(filter(None, ["default", part, task]))] = [str(default)]
    words.update(_values(every))
    return words


def _parts() -> Iterator[tuple[str, list[tuple[str, list[Option]]]]]:
    tasks = options_of_tasks().values()
    yield "task", [(t, [o for o in tasks if ("task", t) in o.owners]) for t in TASKS]
    for part, specs in PARTS_OF_RUNS.items():
        yield part, [(name, list(settings_in(spec.options))) for name, spec in specs.items()]
    runtimes = options_of_runtimes().values()
    of_runtime = [
        (name, [o for o in runtimes if name in o.field.metadata["runtimes"]]) for name in RUNTIMES
    ]
    yield "runtime", of_runtime


def _flags(options: Iterable[Option]) -> list[str]:
    return [o.flag if o.kind is bool else f"{o.flag}=" for o in options]


def _values(options: Iterable[Option]) -> Iterator[tuple[str, list[str]]]:
    for option in options:
        choices = option.field.metadata.get("choices", _PARTS.get(option.flag))
        if option.kind is bool:
            yield f"values {option.flag}", ["true", "false"]
        elif choices is not None:
            yield f"values {option.flag}", list(choices)
    for kind in ("values", "list"):
        yield f"{kind} algorithms", list(ALGORITHMS)


def _of_checkout() -> list[str]:
    """Returns the commands that `./run` alone has; none of an installed package."""
    run = Path(__file__).resolve().parents[2] / "run"
    if not run.is_file():
        return []
    lists = re.findall(r"^\w+_commands=\((.*)\)$", run.read_text(), re.MULTILINE)
    return [name for names in lists for name in names.split()]


def run_app() -> None:
    """Prints the script for the shell that the command line names."""
    try:
        if len(sys.argv) != 2:
            given = " ".join(sys.argv[1:]) or "none"
            raise UserError(f"completion: expected a shell, {' or '.join(SHELLS)}, found {given}")
        if sys.argv[1] in ("--help", "-h", "--helpfull"):
            print((sys.modules["__main__"].__doc__ or "").strip())
            return
        print(script(sys.argv[1]))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
