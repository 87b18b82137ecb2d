"""The methods of a comparison: algorithms with their settings, over several seeds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.domain_weights.excess import OWN, TRIVIAL
from tff_agnostic.program.commands.command_line import RunArguments, TaskOptions
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import assignments
from tff_agnostic.program.options.flags import REPEATED
from tff_agnostic.program.options.user_algorithm import (
    algorithm_label,
    algorithm_named,
    is_user_file,
)
from tff_agnostic.program.runs.options import find_algorithm
from tff_agnostic.program.runs.spec import RunSettings, check_used_by_any
from tff_agnostic.program.studies.comparison import BASELINE, MAX_TRIALS
from tff_agnostic.tasks.domain_input import EMBEDDING

_FORM = "[LABEL=]ALGORITHM[:FLAG=VALUE,...], separated by semicolons"
# Settings that all methods of a comparison share.
SHARED_SETTINGS = ("runtime", "seed", "worst_min_examples", "client_percentiles")
# Names of methods are also names of folders. Other folders have the names in _TAKEN.
_NAME = re.compile(r"[\w][\w .+-]*")
_TAKEN = ("runs", "trials", "baselines", "first_stages")
# Shorthand of two-stage methods; see `studies.rows`.
LAST_LAYER = "last_layer"


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method of a comparison.

    Attributes:
        settings: Settings of the method's runs by flag, including the algorithm; for a two-stage
            method, settings of the second stage.
        word: Shorthand of the method in --arms; empty without one.
    """

    label: str
    settings: Mapping[str, Any]
    word: str = ""


_UNIFORM = {
    "algorithm": "agnostic_fed_avg",
    "lambda_update": "fixed",
    "lambda_set": "simplex",
    # Keep the default, even if a shared setting gives the other methods an initial lambda.
    "lambda_initial": None,
}
_POOLED = {
    "pooled": True,
    # No client sends a message, so there is nothing to aggregate or to sample.
    "aggregation": "plain",
    "update_aggregator": "none",
    "cohort_sampling": "uniform",
    # Plain minibatch SGD, in which all batches have equal weights.
    "client_normalizer": "batch",
    "server_optimizer": "sgd",
    "server_learning_rate": 1.0,
}
WORDS: Mapping[str, Arm] = {
    "uniform": Arm("FedAvg, equal domain weights", _UNIFORM),
    "frozen": Arm(
        "absent domains frozen",
        {"algorithm": "agnostic_fed_avg", "lambda_absent": "freeze"},
    ),
    "excess_own": Arm(
        "excess losses over own references",
        {"algorithm": "agnostic_fed_avg", "lambda_baselines": OWN},
    ),
    "excess_trivial": Arm(
        "excess losses over trivial predictors",
        {"algorithm": "agnostic_fed_avg", "lambda_baselines": TRIVIAL},
    ),
    LAST_LAYER: Arm("last layer balanced", _UNIFORM),
    "domain_input": Arm("domain as an input", {"algorithm": BASELINE, "domain_input": EMBEDDING}),
    "pooled": Arm("pooled, not federated", {"algorithm": BASELINE, **_POOLED}),
    "pooled_balanced": Arm("pooled, equal domain weights, not federated", {**_UNIFORM, **_POOLED}),
}


def algorithm_arms(names: Sequence[str]) -> dict[str, Arm]:
    """Returns a method for each algorithm or member of `WORDS`, by the name of its folder."""
    arms = {
        algorithm_label(name): dataclasses.replace(WORDS[name], word=name)
        if name in WORDS
        else Arm(find_algorithm(name, "--algorithms").label, {"algorithm": name})
        for name in names
    }
    if not arms or len(arms) < len(names):
        raise UserError(f"--algorithms: expected different names, found {','.join(names)!r}")
    check_names("--algorithms", arms)
    return arms


def parsed_arms(text: str, parse: Callable[[str, str], Any]) -> dict[str, Arm]:
    """Returns the methods that --arms describes, by the names of their folders.

    "mild=q_ffl:q=0.1;strong=q_ffl:q=5;fed_avg" describes three methods: "mild", "strong" and
    "fed_avg". Without a label a method has its algorithm's name. Values may contain commas. A
    shorthand in `WORDS` may replace the algorithm.

    Args:
        parse: Called with a flag and the text of a value; returns the value.
    """
    arms: dict[str, Arm] = {}
    for label, algorithm, settings in _split(text):
        name = label or algorithm_label(algorithm)
        if name in arms:
            raise UserError(f"--arms: expected different labels, found {name!r} twice")
        arms[name] = _arm(name, label, algorithm, settings, parse)
    if not arms:
        raise UserError(f"--arms: expected {_FORM}, found {text!r}")
    check_names("--arms", arms)
    return arms


def _arm(
    name: str,
    label: str,
    algorithm: str,
    settings: Mapping[str, Any],
    parse: Callable[[str, Any], Any],
) -> Arm:
    word = WORDS.get(algorithm)
    try:
        default = word.label if word else algorithm_named(algorithm).label
        values = {flag: parse(flag, value) for flag, value in settings.items()}
    except UserError as e:
        raise e if is_user_file(algorithm) else UserError(f"--arms: {name}: {e}") from None
    fixed = sorted({"algorithm", *SHARED_SETTINGS} & values.keys())
    if fixed:
        raise UserError(f"--arms: {name}: expected settings of training, found {fixed[0]}")
    if word is None:
        return Arm(label or default, {**values, "algorithm": algorithm})
    twice = next((flag for flag in values if flag in word.settings), None)
    if twice is not None:
        raise UserError(
            f"--arms: {name}: expected settings that {algorithm} does not set itself, found {twice}"
        )
    return Arm(label or default, {**values, **word.settings}, algorithm)


def check_names(flag: str, names: Iterable[str]) -> None:
    """Checks that names of methods can be names of folders, next to the files of a study."""
    spellings: dict[str, str] = {}
    for name in names:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise UserError(
                f"{flag}: expected a label of letters, digits, spaces and . + - _ that is none of "
                f"{', '.join(_TAKEN)}, found {name!r}"
            )
        other = spellings.setdefault(name.casefold(), name)
        if other != name:
            raise UserError(
                f"{flag}: expected labels that differ by more than capitals, as some file systems "
                f"ignore these, found {other!r} and {name!r}"
            )


def _split(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    for item in text.split(";"):
        if not item.strip():
            continue
        head, _, tail = item.strip().partition(":")
        label, equals, algorithm = head.rpartition("=")
        if not algorithm or (equals and not label):
            raise UserError(f"--arms: expected {_FORM}, found {item.strip()!r}")
        settings: dict[str, str] = {}
        for flag, value in assignments("--arms", tail):
            if flag in settings:
                raise UserError(f"--arms: expected {flag} once, found it twice in {item.strip()!r}")
            settings[flag] = value
        yield label.strip(), algorithm.strip(), settings


@dataclasses.dataclass(frozen=True)
class ArmOptions(TaskOptions):
    """The methods of a comparison.

    Attributes:
        algorithms: The methods: names (afl_boost, agnostic_fed_avg, delta_fl, fed_avg,
            fed_avg_sub, fed_avg_target_only, fed_boost, fed_prox, q_ffl, stochastic_afl, term),
            Python files of yours, or shorthands of --arms such as uniform.
        arms: Instead of --algorithms: methods with their own settings, as
            [LABEL=]ALGORITHM[:FLAG=VALUE,...], separated by semicolons. ALGORITHM may be a
            shorthand: uniform (equal domain weights), frozen (AgnosticFedAvg with absent domains
            frozen), excess_own and excess_trivial (in compare: --lambda_baselines=own or trivial),
            last_layer (FedAvg for half of the rounds, then uniform for the last layer only),
            domain_input (FedAvg of a model with the domain as an input), or pooled and
            pooled_balanced (FedAvg and uniform without federated training: all examples are in one
            place).
        override: A flag for one row only, as ROW:FLAG=VALUE; may be given several times.
    """

    task: Annotated[str, OneOf(DEFAULTS)] = "digits"
    algorithms: tuple[str, ...] = ("fed_avg", "agnostic_fed_avg")
    arms: Optional[str] = None
    override: Annotated[tuple[str, ...], REPEATED] = ()


@dataclasses.dataclass(frozen=True)
class TrialOptions(ArmOptions):
    """The methods of a comparison, and the number of trials.

    Attributes:
        trials: Number of trials per method; their seeds are --seed, --seed + 1, and so on.
    """

    trials: Annotated[int, Within(least=1, most=MAX_TRIALS)] = 3


def given_arms(given: RunArguments) -> dict[str, Arm]:
    """Returns the methods of a comparison, by the names of their folders."""
    args, options = given.args, given.options
    if args.arms is None:
        return algorithm_arms(args.algorithms)
    if "algorithms" in given.names:
        raise UserError("--arms and --algorithms: expected one of them, found both")
    return parsed_arms(args.arms, lambda flag, text: options[flag].parsed(text))


def overrides(given: RunArguments, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the settings in --override of each method in `names`."""
    settings: dict[str, dict[str, Any]] = {name: {} for name in names}
    for text in given.args.override:
        owner, _, assignment = text.partition(":")
        name, equals, value = assignment.partition("=")
        if not equals or owner not in settings or name in ("algorithm", *SHARED_SETTINGS):
            raise UserError(
                f"--override: expected ROW:FLAG=VALUE with one of {', '.join(names)} "
                f"and a flag of its training, found {text!r}"
            )
        settings[owner][name] = given.options[name].parsed(value)
    return settings


def trial_specs(
    given: RunArguments, arms: Mapping[str, Arm], called: Optional[Mapping[str, str]] = None
) -> dict[str, list[RunSettings]]:
    """Returns the settings of each method's runs; their seeds count up from --seed, or from 0.

    Args:
        arms: The methods, by the names of their folders.
        called: Names in --override of the methods that --override does not name by their folders,
            such as "mixtures" for every mixture. --override cannot change the settings in the `Arm`
            of such a method.
    """
    owners = {name: (called or {}).get(name, name) for name in arms}
    further = overrides(given, list(dict.fromkeys(owners.values())))
    first_seed = given.settings.get("seed", 0)
    specs = {}
    for name, arm in arms.items():
        owner = owners[name]
        word_settings = WORDS[arm.word].settings if arm.word else {}
        unchangeable = word_settings if owner == name else arm.settings
        fixed = sorted(further[owner].keys() & unchangeable.keys())
        if fixed:
            raise UserError(
                f"--override: {owner}: expected a flag that {owner} does not set itself, found "
                f"{fixed[0]}"
            )
        specs[name] = [
            given.resolved_spec({**arm.settings, **further[owner], "seed": first_seed + k})
            for k in range(given.args.trials)
        ]
    for flag in given.settings:
        # A method's own setting has precedence over the shared one.
        takers = [runs[0] for name, runs in specs.items() if flag not in arms[name].settings]
        if not takers:
            raise UserError(f"--{flag} has no effect: every row sets it itself: {', '.join(arms)}")
        check_used_by_any(takers, [flag])
    return specs
