"""Wrong flags, values and algorithm files: one line names the flag or the file.

Each row tests one rule. `test_ignored_flags.py` has the flags without effect.
"""

import re

import pytest

from binaries import compare, evaluate, train
from tests.support.algorithm_files import write_by_size
from tests.support.commands import TOY, Caller

_NUMBERS = "--lambda_baselines=1,2"
_CENTRAL = "--privacy=central --noise_multiplier=1"
_TFF = "--runtime=tff --update_aggregator="
# Each row: arguments of `train`, beginning of the message, another part of the message.
_TRAIN = [
    ("--algorithm=agnostic_fedavg", "--algorithm: ", "did you mean agnostic_fed_avg?"),
    ("--windw=3", "Unknown command line flag 'windw'", "window"),
    ("--client_percentiles=90,50,90.0", "--client_percentiles: ", "found 90 twice"),
    ("--max_clients_in_step=2 --client_mode=streamed", "--max_clients_in_step: ", "streamed"),
    ("--max_clients_in_step=2 --xla", "--max_clients_in_step: ", "xla"),
    ("--client_mode=vectorised --xla", "--client_mode: expected auto or streamed", "xla"),
    ("--device=tpu", "--device: ", "without xla"),
    ("--runtime=ray --ray_address=head", "--ray_address: expected local, auto or HOST:PORT", ""),
    ("--algorithm=stochastic_afl --lambda_update=cvar", "--lambda_update: ", "found cvar"),
    ("--lambda_update=cvar --lambda_set=ball", "--lambda_set: expected simplex", ""),
    (f"--lambda_baselines=own {_CENTRAL}", "--lambda_baselines: expected numbers with ", "central"),
    ("--task", "Missing value for flag --task", ""),
    ("--flagfile=run.flags", "expected flags only, found 'oops'", ""),
    (f"{_TFF}dp", "--update_aggregator: noise_multiplier: expected standard deviation", ""),
]
_COMPARE = [
    ("--algorithms=fed_avg,fed_avg", "--algorithms: expected different names", ""),
    ("--algorithm=fed_avg", "Unknown command line flag 'algorithm'", "algorithms"),
    ("--arms=a=fed_avg;b=q_ffl:q=0 --window=10", "--window has no effect", ""),
    ("--override=fed_avg", "--override: expected ROW:FLAG=VALUE", ""),
    ("--override=agnostic_fed_avg:windw=3", "unknown flag 'windw': did you mean window?", ""),
    ("--seed=2147483647 --trials=2", "--seed: expected at most 2147483647", ""),
]


@pytest.mark.parametrize(
    ("binary", "arguments", "beginning", "part"),
    [
        *((train, *row) for row in _TRAIN),
        *((compare, *row) for row in _COMPARE),
        (evaluate, "--window=3", "Unknown command line flag 'window'", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.rpartition(".")[2],
)
def test_rejects_wrong_arguments(folder, binary, arguments, beginning, part):
    (folder / "run.flags").write_text("--rounds=3\noops\n--seed=5\n")
    message = Caller(None).refused(folder, binary, *arguments.split())
    assert message.startswith(beginning) and part in message, message


@pytest.mark.parametrize(
    ("arguments", "flag", "part"),
    [
        (
            f"{_TFF}dp:noise_multiplier=0.3",
            "--update_aggregator",
            "less than a tenth of the clients",
        ),
        (_NUMBERS, "--lambda_baselines", "expected 5 numbers, one per domain, found 2"),
        ("--lambda_baselines=own", "--lambda_baselines", "expected a task with held-out clients"),
    ],
)
def test_rejects_flags_that_do_not_fit_the_task(call, folder, arguments, flag, part):
    flags = (*arguments.split(), "--rounds=1", "--output_dir=run")
    message = call.refused(folder, train, *TOY, *flags)
    assert message.startswith(flag) and part in message


_RUN = (*TOY, "--rounds=1", "--algorithm=mine.py", "--output_dir=run")
_FILES = {
    "def broken(:\n": "line 1: not Python: ",
    "": "expected ALGORITHM, an AlgorithmSpec, found nothing",
    "ALGORITHM = 'fed_avg'\n": "ALGORITHM: expected an AlgorithmSpec, found 'fed_avg'",
    "x = 1 / 0\n": 'it fails: File ".*mine.py", line 1, in <module> x = 1 / 0 .*ZeroDivisionError',
}


def _message(folder, call: Caller = Caller(None)) -> str:
    message = re.sub(r"[ ^]+", " ", call.refused(folder, train, *_RUN))
    _, _, rest = message.partition("mine.py: " if "mine.py: " in message else "mine.py, ")
    return rest


@pytest.mark.parametrize("source", _FILES)
def test_rejects_file_without_algorithm(folder, source):
    (folder / "mine.py").write_text(source)
    assert re.match(_FILES[source], _message(folder))
    message = Caller(None).refused(folder, train, *_RUN)
    for flag in ("--algorithms=fed_avg,mine.py", "--arms=fed_avg;mine.py"):
        assert Caller(None).refused(folder, compare, *TOY, flag) == message


_SPEC = 'ALGORITHM = core.AlgorithmSpec("By size", "none", by_size, Options)'
_POWER = "size_power: Annotated[float, Within(least=0)] = 1.0"
_SETTINGS = [
    (_SPEC, _SPEC.replace(" Options", " dict"), "options: expected a subclass of Options"),
    ("@dataclasses.dataclass(frozen=True)\n", "", "options: expected a frozen dataclass"),
    (_POWER, "size_power: dict = None", "options: expected size_power to be bool, int, "),
    (_POWER, 'size_power: "Unknown" = None', "options fails: NameError: name 'Unknown'"),
    (_POWER, _POWER.replace("1.0", "-1.0"), "size_power: expected at least 0, found -1.0"),
    (_SPEC, _SPEC.replace('"By size"', "None"), "label: expected a string, found None"),
    (_SPEC, f"{_SPEC[:-1]}, paper_settings={{'pover': 2.0}})", "paper_settings: expected flags"),
    (_SPEC, f"{_SPEC[:-1]}, paper_settings={{'size_power': '2'}})", "paper_settings: --size_power"),
    # Options whose names are already flags of a run, a task or another algorithm.
    (_POWER, "rounds: int = 1", "options: expected names that no other flag has, found rounds"),
    (_POWER, "keep: int = 1", "options: expected names that no other flag has, found keep"),
    (_POWER, "q: int = 1", "options: expected q to be float, as in q_ffl, found int"),
]
_BUILD = "def by_size(problem, options):\n"
_STEPS = 'steps=(core.CommunicationStep("training", lambda state: state.weights, work, bounds),),'
_BOUNDS = "return core.training_bounds(model, heaviest)(limits)"
_OUTPUT = "return output._replace(weighted_delta=delta, beta=beta)"
_NEXT = "return core.average_and_apply(optimizer, state, total.weighted_delta, total.beta)"
_COLUMNS = "columns=core.training_columns(model, while_training=True),"
_NORM = "core.Column(core.ReportField('norm', 'a norm'), lambda r: {})"
_FUNCTIONS = [
    (_BUILD, f"{_BUILD}    problem.nothing\n", 'build fails: File ".*line 39, in by_size'),
    (_BUILD, f"{_BUILD}    return 3\n", "build: expected an Algorithm, found int"),
    (_BUILD, "def by_size(problem):\n", "build fails: TypeError: by_size"),
    ("problem=problem,", "problem=model,", "build: expected problem to be the Problem"),
    ('name="by_size"', "name=3", "build: expected name to be str, found int"),
    (_STEPS, "steps=(),", "build: expected steps to be a tuple of at least one"),
    (_STEPS, "steps=(work,),", "build: expected a CommunicationStep in steps"),
    (_COLUMNS, "columns=3,", "build: expected columns to be a tuple, found int"),
    (_COLUMNS, "columns=(3,),", "build: expected a Column of a ReportField in columns"),
    (_COLUMNS, f"columns=({_NORM.format('tf.ones([3])')},),", "column 'norm'"),
    (_BOUNDS, "return core.TrainingState(1, 2)", "step 'training': expected bounds of weighted_"),
    (_OUTPUT, "return [delta, beta]", "step 'training': expected clients to send a named tuple"),
    (_OUTPUT, "raise ValueError('no')", "client_work of step 'training' fails: "),
    (_NEXT, "return 3", "expected finish to return a state of the structure"),
]
# These errors appear only when a round is traced.
_SLOW_FUNCTIONS = [
    (_COLUMNS, f"columns=2 * core{_COLUMNS.partition('core')[2]}", "build: expected columns of"),
    (_COLUMNS, f"columns=({_NORM.format('r.nothing')},),", "column 'norm' fails"),
    (_COLUMNS, f"{_COLUMNS}\n        models=lambda state: {{}},", "models: "),
    (_BOUNDS, f"{_BOUNDS}._replace(beta=1.0)", "step 'training', beta:"),
    (_BOUNDS, "return limits.nothing", "bounds of step 'training' fails: "),
    (_OUTPUT, "return core.ClientResult(output, beta)", "step 'training': expected client_work"),
    (_OUTPUT, "return output._replace(beta=tf.cast(beta, tf.float64))", "step 'training', beta:"),
    ("lambda state: state.weights, work", "lambda state: state.nothing, work", "broadcast of st"),
    (_NEXT, "return core.TrainingState([w[:0] for w in state.weights.trainable], ())", "expected "),
    (_NEXT, "return total.nothing", "finish fails: "),
    ("lambda: core.initial_model(model, optimizer)", "lambda: nothing", "initialize fails: "),
]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        *_SETTINGS,
        *_FUNCTIONS,
        *(pytest.param(*row, marks=pytest.mark.slow) for row in _SLOW_FUNCTIONS),
    ],
)
def test_rejects_mistake_in_algorithm(call, folder, old, new, message):
    write_by_size(folder / "mine.py", (old, new))
    (folder / "runs").mkdir()
    refusal = _message(folder, call)
    assert re.match(message, refusal), refusal


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", ["cohort", "tff"])
def test_runtimes_reject_algorithms_equally(call, folder, runtime):
    for old, new, message in _FUNCTIONS[-2:]:
        write_by_size(folder / "mine.py", (old, new))
        assert f"mine.py: {message}" in call.refused(folder, train, *_RUN, f"--runtime={runtime}")
