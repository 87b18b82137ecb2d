"""Options of runs: ranges of numbers, methods of --arms, lambda sets and expected counts."""

import dataclasses
import itertools
import math
import typing
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.algorithm_files import write_by_size
from tests.support.clients import vectorised
from tests.support.options import make_options
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Within, alternatives
from tff_agnostic.computations.domain_losses import Holdout, domain_counts
from tff_agnostic.data.sampling import turns
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import Flag, option_flags, union_members
from tff_agnostic.program.runs.build import build_algorithm, build_lambda_set, training_examples
from tff_agnostic.program.runs.effects import NEEDS
from tff_agnostic.program.runs.options import RunConfig, registered_settings, run_flags
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.methods import Arm, algorithm_arms, parsed_arms

# AgnosticFedAvg is first, because other algorithms reject some values of shared options.
_CLASSES = [
    RunConfig,
    ALGORITHMS["agnostic_fed_avg"].options,
    *(options for _, _, options in registered_settings()),
]


def _flags() -> dict[str, tuple[type, Flag]]:
    """Returns each flag of runs with the first options class that defines it."""
    flags: dict[str, tuple[type, Flag]] = {}
    for options in _CLASSES:
        for flag in option_flags(options):
            flags.setdefault(flag.name, (options, flag))
    return flags


_BY_FLAG = _flags()


def _within(flag: str) -> Within:
    """Returns the range that a flag's number must be within."""
    extras = [getattr(m, "__metadata__", ()) for m in alternatives(_BY_FLAG[flag][1].hint)]
    ranges = [extra for extra in itertools.chain(*extras) if isinstance(extra, Within)]
    return ranges[0] if ranges else Within()


_NUMBERS = [flag for flag, (_, f) in _BY_FLAG.items() if f.kind in (int, float)]


def _made(flag: str, value: Any) -> Any:
    return make_options(_BY_FLAG[flag][0], **{flag: value})


def _error(flag: str, value: Any) -> str:
    return golden.refusal(_made, flag, value)


def test_shared_flag_has_one_type_and_help():
    for options in _CLASSES:
        for flag in option_flags(options):
            _, defined = _BY_FLAG[flag.name]
            assert (flag.kind, flag.help("")) == (defined.kind, defined.help("")), flag.name


def test_only_client_limits_belong_to_several_option_kinds():
    kinds: dict[str, set[str]] = {}
    limits = {flag.name for flag in option_flags(ClientLimits, prefix="limit_")}
    for kind, _, options in [("run", "", RunConfig), *registered_settings()]:
        for flag in option_flags(options):
            if flag.name not in limits:
                kinds.setdefault(flag.name, set()).add(kind)
    assert {flag: names for flag, names in kinds.items() if len(names) > 1} == {}


@pytest.mark.parametrize("flag", NEEDS)
def test_needed_flag_values_are_valid_choices(flag):
    other, values = NEEDS[flag]
    hint = _BY_FLAG[other][1].hint
    assert flag in _BY_FLAG
    assert values and set(values) < _choices(hint)


def _choices(hint: Any) -> set[Any]:
    """Returns all values that an annotation with choices allows."""
    if hint is bool:
        return {True, False}
    names = [extra.names for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, OneOf)]
    return set(*names) or set(union_members(hint)) or set(typing.get_args(hint))


@pytest.mark.parametrize("flag", _NUMBERS)
def test_invalid_number_names_its_flag(flag):
    within, kind = _within(flag), _BY_FLAG[flag][1].kind
    step = 1 if kind is int else 0.5
    for limit, wrong in (
        (within.least, -step),
        (within.above, 0),
        (within.most, step),
        (within.below, 0),
    ):
        if limit is not None:
            number = kind(limit + wrong)
            assert _error(flag, number) == f"--{flag}: expected {within}, found {number}"
    if within.or_zero:
        _made(flag, kind(0))


@pytest.mark.parametrize("flag", [f for f in _NUMBERS if _BY_FLAG[f][1].kind is int])
def test_integers_have_minimum_and_fit_int32(flag):
    assert _within(flag).least is not None
    if _within(flag).most is None:
        assert _error(flag, 2**31) == f"--{flag}: expected at most 2147483647, found 2147483648"


@pytest.mark.parametrize("flag", [f for f in _NUMBERS if _BY_FLAG[f][1].kind is float])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_number_names_its_flag(flag, value):
    assert _error(flag, value) == f"--{flag}: expected a finite number, found {value}"


def test_task_defaults_are_run_flags():
    for entry in DEFAULTS.values():
        assert set(entry.settings) <= set(_BY_FLAG)
        assert set().union(*entry.settings_by_algorithm.values()) <= set(_BY_FLAG)


# --- --arms and --algorithms define methods


def _arms(text: str) -> dict[str, Arm]:
    return parsed_arms(text, lambda flag, value: run_flags()[flag].parsed(value))


def test_arms_have_labels_algorithms_and_settings():
    arms = _arms("mild=q_ffl:q=0.1;strong=q_ffl:q=5,client_batch_size=3;agnostic_fed_avg")
    assert arms == {
        "mild": Arm("mild", {"algorithm": "q_ffl", "q": 0.1}),
        "strong": Arm("strong", {"algorithm": "q_ffl", "q": 5.0, "client_batch_size": 3}),
        "agnostic_fed_avg": Arm(
            ALGORITHMS["agnostic_fed_avg"].label, {"algorithm": "agnostic_fed_avg"}
        ),
    }
    assert list(arms) == ["mild", "strong", "agnostic_fed_avg"]


def test_arms_allow_commas_and_ignore_spaces():
    arms = _arms(" half = agnostic_fed_avg:lambda_initial=0.5,0.5,window=3 ; fed_avg; ")
    assert arms["half"].settings == {
        "algorithm": "agnostic_fed_avg",
        "lambda_initial": (0.5, 0.5),
        "window": 3,
    }
    assert list(arms) == ["half", "fed_avg"]


@golden.values
def test_rejects_invalid_arms(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return golden.refusal(_arms, case).removeprefix(f"{tmp_path}/")


def test_algorithms_are_arms_by_name(tmp_path):
    path = write_by_size(tmp_path / "by_size.py")
    arms = algorithm_arms(["fed_avg", str(path)])
    assert arms == {
        "fed_avg": Arm("FedAvg", {"algorithm": "fed_avg"}),
        "by_size": Arm("By size", {"algorithm": str(path)}),
    }


def test_rejects_names_that_differ_in_capitals(tmp_path):
    paths = [write_by_size(tmp_path / name) for name in ("Mine.py", "mine.py")]
    with pytest.raises(UserError, match=r"^--algorithms: expected labels .*'Mine' and 'mine'$"):
        algorithm_arms(list(map(str, paths)))


def test_rejects_files_named_like_outputs(tmp_path):
    path = write_by_size(tmp_path / "runs.py")
    with pytest.raises(UserError, match=r"^--algorithms: expected a label of .* found 'runs'$"):
        algorithm_arms([str(path)])


# --- Lambda sets and expected counts are derived from clients


def test_simplex_builds_no_set():
    """No client is read, and the length of lambda_0 is not checked."""
    spec = resolve("toy_regression", {"lambda_initial": (0.5, 0.5)}, {})
    unreadable = dataclasses.replace(spec.load_task(), train=None)
    assert build_lambda_set(spec, unreadable) is None


@pytest.mark.parametrize(
    ("settings", "cut"),
    [
        ({"max_examples": 4}, 4),
        ({"aggregation": "secure", "limit_examples": 3}, 3),
        ({"privacy": "central", "noise_multiplier": 1.0, "limit_examples": 3}, 3),
        ({"aggregation": "secure", "limit_examples": 3, "max_examples": 4}, 3),
        ({"aggregation": "secure"}, None),
        ({}, None),
    ],
)
def test_expected_counts_respect_the_limits(settings, cut):
    spec = resolve(
        "toy_regression", {"algorithm": "fed_avg", "clients_per_round": 10, **settings}, {}
    )
    task = spec.load_task()
    read = [spec.load_task().train.read(client)["domain_id"] for client in task.train.client_ids]
    used = np.concatenate([domains[:cut] for domains in read])
    expected = np.bincount(used, minlength=task.num_domains) * (10 / len(read))
    algorithm = build_algorithm(spec, task)
    np.testing.assert_allclose(algorithm.problem.expected_counts, expected, rtol=1e-12, atol=1e-5)


def test_expected_counts_match_cohorts_that_take_turns():
    """50 clients do not fill two cohorts of 30, so that one cohort has all clients."""
    given = {"algorithm": "fed_avg", "cohort_sampling": "turns"}
    for in_turns, in_round in ((30, 50), (25, 25), (20, 25), (10, 10)):
        spec = resolve("toy_regression", {**given, "clients_per_round": in_turns}, {})
        task = spec.load_task()
        drawn = turns(task.train.client_ids, in_turns, 0)
        assert np.mean([len(cohort) for cohort in drawn]) == in_round
        counts = build_algorithm(spec, task).problem.expected_counts
        assert sum(counts) == pytest.approx(sum(training_examples(task)) * in_round / 50)


def test_expected_held_out_counts_match_the_splits():
    """The mean over 20 seeds is close, although clients have only one or two examples."""
    given = {"measured_share": 0.5, "clients_per_round": 10}
    spec = resolve("toy_regression", given, {"num_clients": 700})
    task = spec.load_task()
    problem = build_algorithm(spec, task).problem
    clients = [task.train.read(client) for client in task.train.client_ids]
    num_seeds, actual = 20, np.zeros(task.num_domains)
    for seed in range(num_seeds):
        kept_out, _ = Holdout(0.5, seed).split(vectorised(clients))
        actual += np.sum(domain_counts(task.num_domains, kept_out), axis=0)
    actual *= 10 / len(clients) / num_seeds
    np.testing.assert_allclose(problem.expected_kept_out, actual, rtol=0.1)
    assert sum(problem.expected_kept_out) < 0.35 * sum(problem.expected_counts)


def test_domain_without_clients_has_no_expected_count():
    spec = resolve("toy_regression", {"algorithm": "fed_avg", "clients_per_round": 10}, {})
    task = spec.load_task()
    more = dataclasses.replace(task, domain_names=(*task.domain_names, *"abcdefgh"))
    counts = build_algorithm(spec, more).problem.expected_counts
    assert counts[:5] == build_algorithm(spec, task).problem.expected_counts
    assert all(0 < count < 1e-4 for count in counts[5:])


def test_ball_is_centred_at_the_training_mixture():
    spec = resolve("toy_regression", {"lambda_set": "ball:radius=0.2"}, {})
    task = spec.load_task()
    totals = training_examples(task)
    actual = build_lambda_set(spec, task)
    assert actual.center == pytest.approx(totals / np.sum(totals))
    assert actual.radius == 0.2
