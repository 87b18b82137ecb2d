"""Options of runs: ranges of numbers, methods of --arms, lambda sets and expected counts."""

import dataclasses

import numpy as np
import pytest

from tests.support import golden
from tests.support.algorithm_files import write_by_size
from tests.support.clients import vectorised
from tests.support.options import make_options
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations.domain_losses import Holdout, domain_counts
from tff_agnostic.data.sampling import turns
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import option_flags
from tff_agnostic.program.runs.build import build_algorithm, build_lambda_set, training_examples
from tff_agnostic.program.runs.effects import NEEDS
from tff_agnostic.program.runs.options import RunConfig, registered_settings, run_flags
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.methods import Arm, algorithm_arms, parsed_arms

_AGNOSTIC = ("algorithm", "agnostic_fed_avg")


def test_shared_flag_has_one_type_and_help():
    defined: dict[str, tuple[type, str]] = {}
    for options in (RunConfig, *(options for _, _, options in registered_settings())):
        for flag in option_flags(options):
            actual = (flag.kind, flag.help(""))
            assert defined.setdefault(flag.name, actual) == actual, flag.name


def test_only_client_limits_belong_to_several_option_kinds():
    limits = {flag.name for flag in option_flags(ClientLimits, prefix="limit_")}
    settings = {("run", flag.name) for flag in option_flags(RunConfig)}
    for kind, _, options in registered_settings():
        settings |= {(kind, flag.name) for flag in option_flags(options) if flag.name not in limits}
    names = [name for _, name in settings]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("flag", NEEDS)
def test_needed_flag_values_are_valid(flag):
    other, values = NEEDS[flag]
    users = run_flags()[other].users
    # Other algorithms than AgnosticFedAvg reject some values of its options.
    _, algorithm = _AGNOSTIC if _AGNOSTIC in users else users[0]
    for value in values:
        make_options(ALGORITHMS[algorithm].options, **{other: value})


def test_whole_numbers_have_a_minimum():
    for options in (RunConfig, *(options for _, _, options in registered_settings())):
        for flag in option_flags(options):
            if flag.kind is int:
                message = golden.refusal(make_options, options, **{flag.name: -(2**31)})
                assert message.startswith(f"--{flag.name}: expected at least ")


def test_task_defaults_are_run_flags():
    for entry in DEFAULTS.values():
        assert set(entry.settings).union(*entry.settings_by_algorithm.values()) <= {*run_flags()}


# --- --arms and --algorithms define methods


def _arms(text: str) -> dict[str, Arm]:
    return parsed_arms(text, lambda flag, value: run_flags()[flag].parsed(value))


def test_arms_have_labels_algorithms_and_settings():
    half = " half = agnostic_fed_avg:lambda_initial=0.5,0.5,window=3 ; "
    arms = _arms(f"mild=q_ffl:q=0.1;{half}agnostic_fed_avg")
    settings = {"algorithm": "agnostic_fed_avg", "lambda_initial": (0.5, 0.5), "window": 3}
    label = ALGORITHMS["agnostic_fed_avg"].label
    assert arms == {
        "mild": Arm("mild", {"algorithm": "q_ffl", "q": 0.1}),
        "half": Arm("half", settings),
        "agnostic_fed_avg": Arm(label, {"algorithm": "agnostic_fed_avg"}),
    }
    assert list(arms) == ["mild", "half", "agnostic_fed_avg"]


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
    # A method's folder must not have the name of another output.
    message = golden.refusal(algorithm_arms, [str(write_by_size(tmp_path / "runs.py"))])
    assert message.startswith("--algorithms: expected a label of ")


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
        ({"privacy": "central", "noise_multiplier": 1.0, "limit_examples": 3}, 3),
        ({"aggregation": "secure", "limit_examples": 3, "max_examples": 4}, 3),
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
