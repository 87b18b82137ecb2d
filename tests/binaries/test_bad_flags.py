"""Flags that are wrong: one line, status 2, and nothing is written or started."""

import subprocess
import sys

import pytest

from binaries import compare, evaluate, train
from tests.binaries.harness import ROOT, TOY, Caller


@pytest.fixture
def call() -> Caller:
    """Calls that start nothing."""
    return Caller(None)


_UNKNOWN = [
    (
        ["--task=digit"],
        "unknown task 'digit': did you mean digits? valid names: digits, toy_regression, adult, "
        "client_files",
    ),
    (
        ["--algorithm=agnostic_fedavg"],
        "--algorithm: unknown algorithm 'agnostic_fedavg': did you mean agnostic_fed_avg or "
        "fed_avg? valid names: afl_boost, agnostic_fed_avg, delta_fl, fed_avg, fed_avg_sub, ",
    ),
    (["--windw=3"], "Unknown command line flag 'windw'. Did you mean: window ?"),
    (["--digits_num_client=3"], "Unknown command line flag 'digits_num_client'. Did you mean: "),
    (["--nothing_like_it"], "Unknown command line flag 'nothing_like_it'"),
    (["digits"], "expected flags only, found 'digits'"),
    (["--resume", "--", "--task=digits"], "expected flags only, found '--task=digits'"),
    (["--flagfile=missing.flags"], "--flagfile=missing.flags: expected a flag file, found none"),
    (["--rounds", "2", "--rounds", "3"], "--rounds: expected one value, found 2 and 3; what later"),
]


@pytest.mark.parametrize(("arguments", "message"), _UNKNOWN)
def test_what_is_unknown_is_told_with_the_nearest_names(call, folder, arguments, message):
    assert call.refused(folder, train, *arguments).startswith(message)


_VALUES = [
    (["--rounds=0"], "--rounds: expected at least 1, found 0"),
    (["--rounds=99999999999"], "--rounds: expected at most 2147483647, found 99999999999"),
    (
        ["--client_percentiles=50,100"],
        "--client_percentiles: expected numbers between 0 and 100, found 100",
    ),
    (
        ["--client_percentiles=-1"],
        "--client_percentiles: expected numbers between 0 and 100, found -1",
    ),
    (["--client_percentiles=nan"], "--client_percentiles: expected a finite number, found nan"),
    (
        ["--client_percentiles=90,50,90.0"],
        "--client_percentiles: expected different numbers, found 90 twice",
    ),
    (
        ["--client_percentiles=half"],
        "--client_percentiles: expected numbers separated by commas, found 'half'",
    ),
    (
        ["--client_percentiles="],
        "--client_percentiles: expected numbers between 0 and 100, found none",
    ),
    (["--lanes=100000"], "--lanes: expected at most 1024, found 100000"),
    (["--lanes=two"], "flag --lanes=two: invalid literal for int() with base 10: 'two'"),
    (
        ["--max_clients_in_step=2", "--client_mode=streamed"],
        "--max_clients_in_step has no effect with --client_mode=streamed",
    ),
    (["--max_clients_in_step=2", "--xla"], "--max_clients_in_step has no effect with --xla"),
    (
        ["--client_mode=vectorised", "--xla"],
        "--client_mode=vectorised: XLA compiles streamed clients only",
    ),
    (["--device=tpu"], "--device=tpu: expected --xla with it, without which no TPU runs"),
    (["--client_learning_rate=0"], "--client_learning_rate: expected a positive number, found 0.0"),
    (
        ["--domain_learning_rate=1e308"],
        "--domain_learning_rate: expected at most 3.4028235e+38 in size, as float32 has it, in wh",
    ),
    (
        ["--server_learning_rate=1e-320"],
        "--server_learning_rate: expected 0 or at least 1.1754944e-38 in size, as float32 has it",
    ),
    (
        ["--domain_conformity=0.5"],
        "--domain_conformity has no effect with --domain_weight_update=exponentiated_gradient: it",
    ),
    (
        ["--domain_weight_update=cvar", "--domain_learning_rate=0.1"],
        "--domain_learning_rate has no effect with --domain_weight_update=cvar: it needs ",
    ),
    (
        ["--algorithm=stochastic_afl", "--domain_weight_update=cvar"],
        "--domain_weight_update: Stochastic-AFL steps along estimates of the losses, and cvar has",
    ),
    (
        ["--domain_weight_update=cvar", "--lambda_set=ball"],
        "--lambda_set: expected simplex with --domain_weight_update=cvar, whose --domain_conformi",
    ),
    (
        ["--server_optimizer=momentum", "--server_momentum=1"],
        "--server_momentum: expected less than 1.0, found 1.0",
    ),
    (
        ["--algorithm=delta_fl", "--conformity=0.5,0"],
        "--conformity: expected levels in (0, 1], found 0",
    ),
    (
        ["--algorithm=delta_fl", "--conformity=0.5,0.8,0.5"],
        "--conformity: expected different levels, found 0.5 twice",
    ),
    (
        ["--algorithm=delta_fl", "--threshold=tracked", "--boundary=paper"],
        "--boundary has no effect with --threshold=tracked: it needs --threshold=survey or lagged",
    ),
    (
        ["--algorithm=fed_avg", "--conformity=0.5"],
        "--conformity has no effect with --algorithm=fed_avg: it needs --algorithm=delta_fl",
    ),
    (
        ["--algorithm=q_ffl", "--client_weighting=equally"],
        "--client_weighting: unknown client weighting 'equally': did you mean equal? valid names: ",
    ),
    (["--rounds=many"], "flag --rounds=many: invalid literal for int() with base 10: 'many'"),
    (["--rounds=1.5"], "flag --rounds=1.5: invalid literal for int() with base 10: '1.5'"),
    (["--rounds="], "flag --rounds=: invalid literal for int() with base 10: ''"),
    (["--client_learning_rate=fast"], "flag --client_learning_rate=fast: could not convert string"),
    (
        ["--shuffle=maybe"],
        "flag --shuffle=maybe: ('Non-boolean argument to boolean flag', 'maybe')",
    ),
    (["--task"], "Missing value for flag --task"),
    *(
        ([f"--{name}="], f"--{name}: expected a path, found an empty one")
        for name in ("output_dir", "data_dir", "data")
    ),
]


@pytest.mark.parametrize(("arguments", "message"), _VALUES)
def test_a_value_out_of_range_or_of_another_type(call, folder, arguments, message):
    assert call.refused(folder, train, *arguments).startswith(message)


_WITHOUT_EFFECT = [
    (
        ["--algorithm=fed_avg", "--domain_loss_share=0.2"],
        "--domain_loss_share has no effect with --algorithm=fed_avg: it needs --algorithm=agnosti",
    ),
    (
        ["--algorithm=fed_avg", "--window=3"],
        "--window has no effect with --algorithm=fed_avg: it needs --algorithm=agnostic_fed_avg",
    ),
    (
        ["--algorithm=fed_avg", "--initial_domain_weights=0.5,0.5"],
        "--initial_domain_weights has no effect with --algorithm=fed_avg: it needs ",
    ),
    (
        ["--target_domain=3"],
        "--target_domain has no effect with --algorithm=agnostic_fed_avg: it needs "
        "--algorithm=fed_avg_target_only",
    ),
    (
        ["--secure_bits=20"],
        "--secure_bits has no effect with --aggregation=plain: it needs --aggregation=secure",
    ),
    (
        ["--secure_min_clients=3"],
        "--secure_min_clients has no effect with --aggregation=plain: it needs --aggregation=se",
    ),
    (["--q=1"], "--q has no effect with --algorithm=agnostic_fed_avg: it needs --algorithm=q_ffl"),
    (
        ["--algorithm=q_ffl", "--mu=1"],
        "--mu has no effect with --algorithm=q_ffl: it needs --algorithm=fed_prox",
    ),
    (
        ["--tilt=1"],
        "--tilt has no effect with --algorithm=agnostic_fed_avg: it needs --algorithm=t",
    ),
    (
        ["--server_momentum=0.5"],
        "--server_momentum has no effect with --server_optimizer=sgd: it needs "
        "--server_optimizer=momentum or nesterov or adam or yogi",
    ),
    *(
        (
            ["--runtime=tff", flag],
            f"{flag.partition('=')[0]} has no effect with --runtime=tff: it needs --runtime=cohort",
        )
        for flag in (
            "--device=cpu",
            "--client_mode=auto",
            "--max_clients_in_step=2",
            "--lanes=1",
            "--xla",
        )
    ),
    (["--adult_num_clients=5"], "--adult_num_clients has no effect with --task=digits"),
    (
        ["--task=toy_regression", "--digits_keep="],
        "--digits_keep has no effect with --task=toy_regression",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), _WITHOUT_EFFECT)
def test_a_flag_without_effect(call, folder, arguments, message):
    assert call.refused(folder, train, *arguments).startswith(message)


_COMPARE = [
    (["--trials=0"], "--trials: expected at least 1, found 0"),
    (["--trials=2147483647"], "--trials: expected at most 10000, found 2147483647"),
    (["--algorithms="], "--algorithms: expected different names, found ''"),
    (["--algorithms=fed_avg,fed_avg"], "--algorithms: expected different names, found 'fed_avg,fe"),
    (["--algorithms=fed_avg,fedavg"], "unknown algorithm 'fedavg': did you mean fed_avg"),
    (["--algorithm=fed_avg"], "Unknown command line flag 'algorithm'. Did you mean: algorithms ?"),
    (["--task=digit"], "unknown task 'digit': did you mean digits?"),
    (["--rounds=0"], "--rounds: expected at least 1, found 0"),
    (
        ["--algorithms=fed_avg", "--window=3"],
        "--window has no effect with --algorithm=fed_avg: it needs --algorithm=agnostic_fed_avg",
    ),
    (
        ["--algorithms=fed_avg,q_ffl", "--mu=1"],
        "--mu has no effect with --algorithm=fed_avg: it needs --algorithm=fed_prox",
    ),
    *(
        (
            [rows, "--window=10"],
            "--window has no effect with --algorithm=fed_avg: it needs --algorithm=agnostic_fed_av",
        )
        for rows in (
            "--algorithms=fed_avg,q_ffl,fed_prox",
            "--arms=a=fed_avg;b=q_ffl:q=0;c=fed_avg",
        )
    ),
    (["--secure_bits=20"], "--secure_bits has no effect with --aggregation=plain"),
    (["--adult_num_clients=5"], "--adult_num_clients has no effect with --task=digits"),
    (
        ["--override=fed_avg:window=3"],
        "--window has no effect with --algorithm=fed_avg: it needs --algorithm=agnostic_fed_avg",
    ),
    (
        ["--override=fed_avg"],
        "--override: expected NAME:FLAG=VALUE with one of fed_avg, agnostic_fed_avg and a flag of "
        "its training, found 'fed_avg'",
    ),
    (["--override=fedavg:window=3"], "--override: expected NAME:FLAG=VALUE with one of fed_"),
    (
        ["--override=fed_avg:seed=3"],
        "--override: expected NAME:FLAG=VALUE with one of fed_avg",
    ),
    (["--override=agnostic_fed_avg:windw=3"], "unknown flag 'windw': did you mean window?"),
    (["--override=agnostic_fed_avg:window=x"], "--window: expected a whole number, found 'x'"),
    (["--override=agnostic_fed_avg:window=0"], "--window: expected at least 1, found 0"),
    (["--override=fed_avg:shuffle=perhaps"], "--shuffle: expected true or false, found 'perhaps'"),
    (["fed_avg"], "expected flags only, found 'fed_avg'"),
]


@pytest.mark.parametrize(("arguments", "message"), _COMPARE)
def test_what_cannot_be_compared(call, folder, arguments, message):
    assert call.refused(folder, compare, *arguments).startswith(message)


def test_evaluate_has_no_flags_of_training(call, folder):
    assert call.refused(folder, evaluate, "--window=3").startswith("Unknown command line flag 'win")
    assert call.refused(folder, evaluate, "run").startswith("expected flags only, found 'run'")


def test_seeds_of_trials_stay_in_range(call, folder):
    message = call.refused(folder, compare, *TOY, "--seed=2147483647", "--trials=2")
    assert message == "--seed: expected at most 2147483647, found 2147483648"


@pytest.mark.parametrize("names", [(), ("trian",)])
def test_what_is_no_command_is_one_line(names):
    process = subprocess.run(
        [sys.executable, "-m", "binaries", *names], capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 1
    assert process.stderr.startswith("error: expected a command, one of base_predictors, compare,")
    assert process.stderr.count("\n") == 1
