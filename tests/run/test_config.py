"""The settings of runs: ranges, help texts, and settings without effect, whoever has them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tff_agnostic.settings import check_effective, flag_of, kind_of

from tests import golden
from tests.algorithms.user_files import write_by_size
from tests.computations.harness import vectorised
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations.domain_losses import Holdout, domain_counts
from tff_agnostic.data.sampling import turns
from tff_agnostic.errors import UserError
from tff_agnostic.run.build import build_algorithm, build_lambda_set, training_examples
from tff_agnostic.run.options import RunConfig, options_of_runs, settings_of_runs
from tff_agnostic.run.spec import resolve
from tff_agnostic.studies.methods import Arm, arms_of_algorithms, parsed_arms
from tff_agnostic.tasks.registry import TASKS

# Others refuse some values of the settings that they have in common with AgnosticFedAvg.
_PARTS = [
    RunConfig,
    ALGORITHMS["agnostic_fed_avg"].options,
    *(options for _, _, options in settings_of_runs()),
]


def _settings() -> Iterator[tuple[type, dataclasses.Field]]:
    """Yields every setting once, with a dataclass that has it."""
    seen: set[str] = set()
    for options in _PARTS:
        for field in dataclasses.fields(options):
            if flag_of(field) not in seen:
                seen.add(flag_of(field))
                yield options, field


_BY_FLAG = {flag_of(field): (options, field) for options, field in _settings()}
_INTEGERS = [flag for flag, (options, field) in _BY_FLAG.items() if kind_of(options, field) is int]
_FLOATS = [flag for flag, (options, field) in _BY_FLAG.items() if kind_of(options, field) is float]


def _with(flag: str, metadata: str) -> bool:
    return metadata in _BY_FLAG[flag][1].metadata


def _made(flag: str, value: Any, **others: Any) -> Any:
    options, field = _BY_FLAG[flag]
    return options(**{field.name: value, **others})


def _error(flag: str, value: Any) -> str:
    return golden.refusal(_made, flag, value)


@pytest.mark.parametrize("flag", _BY_FLAG)
def test_every_setting_has_a_help_text_and_a_type_that_flags_can_have(flag):
    options, field = _BY_FLAG[flag]
    assert field.metadata["help"].endswith(".")
    assert kind_of(options, field) in (bool, int, float, str, tuple)


def test_a_setting_that_several_have_means_the_same_everywhere():
    for options in _PARTS:
        for field in dataclasses.fields(options):
            known_options, known = _BY_FLAG[flag_of(field)]
            assert kind_of(options, field) is kind_of(known_options, known), flag_of(field)
            assert field.metadata["help"] == known.metadata["help"], flag_of(field)
            assert field.default == known.default, flag_of(field)


def test_runs_algorithms_and_aggregations_share_no_setting_but_the_limits_of_clients():
    owners: dict[str, set[str]] = {}
    limits = {flag_of(field) for field in dataclasses.fields(ClientLimits)}
    for kind, _, options in [("run", "", RunConfig), *settings_of_runs()]:
        for field in dataclasses.fields(options):
            if flag_of(field) not in limits:
                owners.setdefault(flag_of(field), set()).add(kind)
    assert {flag: kinds for flag, kinds in owners.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "only_with")])
def test_what_a_setting_only_works_with_exists(flag):
    options, field = _BY_FLAG[flag]
    other, values = field.metadata["only_with"]
    assert set(values) <= set(_choices(options, other))


def _choices(options, name):
    """Returns what a setting may be; without choices it is a switch."""
    field = next(f for f in dataclasses.fields(options) if f.name == name)
    return field.metadata.get("choices", (False, True))


@pytest.mark.parametrize("options", _PARTS)
def test_the_defaults_are_in_range(options):
    options()


@pytest.mark.parametrize("flag", _INTEGERS)
def test_integers_below_their_range(flag):
    smallest = _BY_FLAG[flag][1].metadata["at_least"]
    expected = f"--{flag}: expected at least {smallest}, found {smallest - 1}"
    assert _error(flag, smallest - 1) == expected


@pytest.mark.parametrize("flag", _INTEGERS)
def test_integers_beyond_what_computations_count_in(flag):
    assert _error(flag, 2**31) == f"--{flag}: expected at most 2147483647, found 2147483648"


@pytest.mark.parametrize("flag", _FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(flag, value):
    assert _error(flag, value) == f"--{flag}: expected a finite number, found {value}"


@pytest.mark.parametrize("flag", _FLOATS)
def test_numbers_below_their_range(flag):
    metadata = _BY_FLAG[flag][1].metadata
    if metadata.get("positive"):
        assert _error(flag, 0.0) == f"--{flag}: expected a positive number, found 0.0"
        assert _error(flag, -0.5) == f"--{flag}: expected a positive number, found -0.5"
    elif "at_least" in metadata:
        assert _error(flag, -0.5) == f"--{flag}: expected at least 0.0, found -0.5"
        _made(flag, 0.0)
    elif "zero_or_at_least" in metadata:
        least = metadata["zero_or_at_least"]
        for wrong in (-0.5, least / 2):
            expected = f"--{flag}: expected 0 or at least {least}, found {wrong}"
            assert _error(flag, wrong) == expected
        _made(flag, least)
    else:
        _made(flag, -0.5)


def test_ranges_with_an_upper_end():
    assert {flag for flag in _BY_FLAG if _with(flag, "below")} == {
        *("server_momentum", "measured_share", "delta", "update_share", "uniform_share"),
        "evaluation_clients_share",
    }
    _made("server_momentum", 0.0)
    assert _error("server_momentum", 1.0) == "--server_momentum: expected less than 1.0, found 1.0"
    _made("secure_bits", 40)
    assert _error("secure_bits", 41) == "--secure_bits: expected at most 40, found 41"


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "choices")])
def test_an_unknown_choice_is_told_with_the_nearest(flag):
    choices = _BY_FLAG[flag][1].metadata["choices"]
    valid = next(iter(choices))
    message = _error(flag, valid[:-1] + "_")
    assert message.startswith(f"--{flag}: unknown ")
    assert f"did you mean {valid}" in message
    assert f"valid names: {', '.join(choices)}" in message


def test_a_choice_that_resembles_none():
    choices = _BY_FLAG["runtime"][1].metadata["choices"]
    expected = "--runtime: unknown runtime 'zzz': valid names: " + ", ".join(choices)
    assert _error("runtime", "zzz") == expected


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "only_with")])
def test_a_setting_without_effect_is_refused(flag):
    options, field = _BY_FLAG[flag]
    other, values = field.metadata["only_with"]
    useless = next(choice for choice in _choices(options, other) if choice not in values)
    check_effective(_made(flag, field.default, **{other: values[0]}), [field.name])
    check_effective(_made(flag, field.default, **{other: useless}), [])
    assert golden.refusal(
        lambda: check_effective(_made(flag, field.default, **{other: useless}), [field.name])
    ) == (
        f"--{flag} has no effect with --{other}={useless}: it needs --{other}="
        f"{' or '.join(map(str, values))}"
    )


def test_every_setting_that_a_task_sets_is_one_of_a_run():
    for spec in TASKS.values():
        assert set(spec.defaults) <= {*_BY_FLAG, *spec.option_names}
        assert set().union(*spec.algorithm_defaults.values()) <= set(_BY_FLAG)


# --- What --arms and --algorithms say, as rows of a comparison


def _arms(text: str) -> dict[str, Arm]:
    return parsed_arms(text, lambda flag, value: options_of_runs()[flag].parsed(value))


def test_an_arm_has_a_label_an_algorithm_and_settings():
    arms = _arms("mild=q_ffl:q=0.1;strong=q_ffl:q=5,client_batch_size=3;agnostic_fed_avg")
    assert arms == {
        "mild": Arm("mild", {"algorithm": "q_ffl", "q": 0.1}),
        "strong": Arm("strong", {"algorithm": "q_ffl", "q": 5.0, "client_batch_size": 3}),
        "agnostic_fed_avg": Arm(
            ALGORITHMS["agnostic_fed_avg"].label, {"algorithm": "agnostic_fed_avg"}
        ),
    }
    assert list(arms) == ["mild", "strong", "agnostic_fed_avg"]


def test_a_value_may_have_commas_and_spaces_are_no_matter():
    arms = _arms(" half = agnostic_fed_avg:lambda_initial=0.5,0.5,window=3 ; fed_avg; ")
    assert arms["half"].settings == {
        "algorithm": "agnostic_fed_avg",
        "lambda_initial": (0.5, 0.5),
        "window": 3,
    }
    assert list(arms) == ["half", "fed_avg"]


@golden.values
def test_text_of_another_form(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return golden.refusal(_arms, case).removeprefix(f"{tmp_path}/")


def test_algorithms_are_arms_of_their_own_names(tmp_path):
    path = write_by_size(tmp_path / "by_size.py")
    arms = arms_of_algorithms(["fed_avg", str(path)])
    assert arms == {
        "fed_avg": Arm("FedAvg", {"algorithm": "fed_avg"}),
        "by_size": Arm("By size", {"algorithm": str(path)}),
    }


def test_files_whose_names_differ_in_capitals_only(tmp_path):
    paths = [write_by_size(tmp_path / name) for name in ("Mine.py", "mine.py")]
    with pytest.raises(UserError, match=r"^--algorithms: expected labels .*'Mine' and 'mine'$"):
        arms_of_algorithms(list(map(str, paths)))


@pytest.mark.parametrize("names", [[], ["fed_avg", "fed_avg"]])
def test_algorithms_that_are_not_different(names):
    with pytest.raises(UserError, match=r"^--algorithms: expected different names, found '"):
        arms_of_algorithms(names)


def test_a_file_cannot_be_called_as_what_stands_beside_the_runs(tmp_path):
    path = write_by_size(tmp_path / "plots.py")
    with pytest.raises(UserError, match=r"^--algorithms: expected a label of .* found 'plots'$"):
        arms_of_algorithms([str(path)])


# --- The mixtures that a run has in view, from its settings and a task


def test_of_all_mixtures_no_set_is_built_and_no_client_is_read():
    """Another task's domains, for which lambda_0 may not fit, are then nothing to speak of."""
    spec = resolve("toy_regression", {"lambda_initial": (0.5, 0.5)}, {})
    unreadable = dataclasses.replace(spec.load_task(), train=None)
    assert build_lambda_set(spec, unreadable) is None


def test_an_algorithm_without_lambda_has_no_set():
    spec = resolve("toy_regression", {"algorithm": "fed_avg"}, {})
    assert build_lambda_set(spec, spec.load_task()) is None


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
def test_expected_counts_are_of_the_examples_that_clients_use(settings, cut):
    spec = resolve(
        "toy_regression", {"algorithm": "fed_avg", "clients_per_round": 10, **settings}, {}
    )
    task = spec.load_task()
    read = [spec.load_task().train.read(client)["domain_id"] for client in task.train.client_ids]
    used = np.concatenate([domains[:cut] for domains in read])
    expected = np.bincount(used, minlength=task.num_domains) * (10 / len(read))
    algorithm = build_algorithm(spec, task)
    np.testing.assert_allclose(algorithm.problem.expected_counts, expected, rtol=1e-12, atol=1e-5)


def test_cohorts_in_turns_are_expected_to_have_the_clients_that_they_have():
    """50 clients and 30 a round make one cohort of all."""
    given = {"algorithm": "fed_avg", "cohort_sampling": "turns"}
    for in_turns, in_round in ((30, 50), (25, 25), (20, 25), (10, 10)):
        spec = resolve("toy_regression", {**given, "clients_per_round": in_turns}, {})
        task = spec.load_task()
        drawn = turns(task.train.client_ids, in_turns, 0)
        assert np.mean([len(cohort) for cohort in drawn]) == in_round
        counts = build_algorithm(spec, task).problem.expected_counts
        assert sum(counts) == pytest.approx(sum(training_examples(task)) * in_round / 50)


def test_of_small_clients_fewer_examples_are_expected_to_be_kept_out():
    """As many as the clients' own splits keep out, over many seeds; they have one or two."""
    given = {"measured_share": 0.5, "clients_per_round": 10}
    spec = resolve("toy_regression", given, {"num_clients": 700})
    task = spec.load_task()
    problem = build_algorithm(spec, task).problem
    clients = [task.train.read(client) for client in task.train.client_ids]
    num_seeds, found = 20, np.zeros(task.num_domains)
    for seed in range(num_seeds):
        kept_out, _ = Holdout(0.5, seed).split(vectorised(clients))
        found += np.sum(domain_counts(task.num_domains, kept_out), axis=0)
    found *= 10 / len(clients) / num_seeds
    np.testing.assert_allclose(problem.expected_kept_out, found, rtol=0.1)
    assert sum(problem.expected_kept_out) < 0.35 * sum(problem.expected_counts)


def test_a_domain_without_clients_adds_nothing_to_the_expected_weight():
    spec = resolve("toy_regression", {"algorithm": "fed_avg", "clients_per_round": 10}, {})
    task = spec.load_task()
    more = dataclasses.replace(task, domain_names=(*task.domain_names, *"abcdefgh"))
    counts = build_algorithm(spec, more).problem.expected_counts
    assert counts[:5] == build_algorithm(spec, task).problem.expected_counts
    assert all(0 < count < 1e-4 for count in counts[5:])


def test_the_centre_of_a_ball_is_the_tasks_training_mixture():
    spec = resolve("toy_regression", {"lambda_set": "ball", "lambda_radius": 0.2}, {})
    task = spec.load_task()
    totals = training_examples(task)
    found = build_lambda_set(spec, task)
    assert found.center == pytest.approx(totals / np.sum(totals))
    assert found.radius == 0.2
