"""Commands that repeat runs and comparisons."""

import pytest

from binaries import train
from tests.support.commands import compared_specs, given
from tff_agnostic.program.commands.command_line import compare_command, own_flags, train_command
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.runs.spec import resolve

_RUNS = [
    *((f"--task={task}", "--seed=3", "--lambda_initial=0.25,0.75") for task in DEFAULTS),
    ("--task=digits", "--client_shuffle=false", "--keep=8:0.5"),
    ("--task=digits", "--algorithm=q_ffl", "--q=2.5", "--client_percentiles=5,99.5"),
    ("--task=digits", "--aggregation=secure", "--privacy=central", "--noise_multiplier=1.5"),
]


def _spec(*arguments):
    return given(train, *arguments).spec()


@pytest.mark.parametrize("arguments", _RUNS)
def test_train_command_is_short_and_repeats_the_run(arguments):
    spec = _spec(*arguments)
    start, name, *again = train_command(spec)
    assert (start, name) == ("./run", "train")
    assert _spec(*again) == spec
    assert len(again) == len(arguments)


def test_commands_name_files_without_their_folders(tmp_path):
    store = tmp_path / "clients.sqlite"
    spec = resolve("custom", {}, {"model": str(tmp_path / "my_model.py")}, data=store)
    command = train_command(spec)
    assert {"--model=my_model.py", "--data=clients.sqlite"} <= set(command)
    assert not any(str(tmp_path) in argument for argument in command)
    hull = _spec("--task=digits", "--lambda_set=hull:file=/a/b/mixtures.json")
    assert "--lambda_set=hull:file=mixtures.json" in train_command(hull)
    kept = {f"--model={tmp_path / 'my_model.py'}", f"--data={store}"}
    assert kept <= set(train_command(spec, keeps_folders=True))
    assert kept <= set(compare_command({"fed_avg": [spec]}, keeps_folders=True))


def test_train_command_omits_ignored_settings():
    shared = {"lambda_learning_rate": 0.5, "rounds": 3}
    spec = resolve("digits", {"algorithm": "fed_avg"}, {}, shared=shared)
    assert own_flags(spec) == {"algorithm": "fed_avg", "rounds": 3}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--arms=fed_avg;a=q_ffl:q=0.5,client_learning_rate=0.5;b=q_ffl:q=2.0", "--rounds=5"),
            "--arms=fed_avg;a=q_ffl:client_learning_rate=0.5,q=0.5;b=q_ffl:q=2.0",
        ),
        (("--seed=4", "--client_batch_size=7"), "--algorithms=fed_avg,agnostic_fed_avg"),
    ],
)
def test_compare_command_repeats_the_trials(arguments, expected):
    specs = compared_specs("--task=digits", "--trials=2", *arguments)
    start, name, *again = compare_command(specs)
    assert (start, name) == ("./run", "compare")
    assert {expected, "--trials=2"} <= {*again}
    assert compared_specs(*again) == specs
