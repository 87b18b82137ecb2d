"""Users' algorithms with mistakes: one line that names the file, and the line where code failed."""

import pytest

from binaries import compare, train
from tests.algorithms.user_files import write_by_size
from tests.binaries.harness import TOY, Caller

_RUN = (*TOY, "--rounds=1", "--algorithm=mine.py", "--output_dir=run")
_POWER = (
    'size_power: float = setting(1.0, "Power of a client\'s size that it weighs.", at_least=0.0)'
)
_SPEC = 'ALGORITHM = core.AlgorithmSpec("By size", "none", by_size, Options)'
_DATACLASS = "@dataclasses.dataclass(frozen=True)\nclass Options"

_NO_ALGORITHMS = [
    ("def broken(:\n", "mine.py, line 1: not Python: "),
    ("", "mine.py: expected ALGORITHM, an AlgorithmSpec, found nothing"),
    ("algorithm = 3\n", "mine.py: expected ALGORITHM, an AlgorithmSpec, found algorithm"),
    ("ALGORITHM = 'fed_avg'\n", "mine.py: ALGORITHM: expected an AlgorithmSpec, found 'fed_avg'"),
    ("import no_such_module\n", "mine.py: it fails: "),
    ("x = 1 / 0\n", "mine.py: it fails: "),
]


@pytest.mark.parametrize(("content", "message"), _NO_ALGORITHMS)
def test_a_file_without_an_algorithm(folder, content, message):
    (folder / "mine.py").write_text(content)
    nothing_starts = Caller(None)
    found = nothing_starts.refused(folder, train, *_RUN)
    assert found.startswith(f"{folder}/{message}")
    if "fails" in message:
        assert content.strip() in found and "mine.py" in found and "line 1" in found
    # The same wherever it is named.
    for flag in ("--algorithms=fed_avg,mine.py", "--arms=fed_avg;mine.py"):
        assert nothing_starts.refused(folder, compare, *TOY, flag) == found


_OPTIONS = [
    (
        (_SPEC, 'ALGORITHM = core.AlgorithmSpec("By size", "none", by_size, dict)'),
        "mine.py: options: expected a subclass of Settings, found dict",
    ),
    (
        (_SPEC, 'ALGORITHM = core.AlgorithmSpec("By size", "none", by_size, Options())'),
        "mine.py: options: expected a subclass of Settings, found Options(",
    ),
    (
        (_DATACLASS, "class Options"),
        "mine.py: options: expected a frozen dataclass, found a plain class with size_power",
    ),
    (
        (_DATACLASS, "@dataclasses.dataclass\nclass Options"),
        "mine.py: it fails: ",
    ),
    (
        (_POWER, "size_power: float = 1.0"),
        "mine.py: options: expected every field to be a setting(default, help), found size_power",
    ),
    (
        (_POWER, 'size_power: dict = setting(None, "Help.")'),
        "mine.py: options: expected size_power to be bool, int, float, str or tuple[float, ...], "
        "optional or not, found dict",
    ),
    (
        (_POWER, 'size_power: tuple = setting((), "Help.")'),
        "mine.py: options: expected size_power to be bool, int, float, str or tuple[float, ...], ",
    ),
    (
        (_POWER, 'size_power: "Unknown" = setting(None, "Help.")'),
        "mine.py: options fails: NameError: name 'Unknown' is not defined",
    ),
    (
        (_POWER, 'size_power: str = setting("a", "Help.", choices=("a", "b"))'),
        "mine.py: options: expected a Registry as choices of size_power",
    ),
    (
        (_POWER, 'size_power: float = setting(-1.0, "Help.", at_least=0.0)'),
        "mine.py: --size_power: expected at least 0.0, found -1.0",
    ),
    (
        (_POWER, 'size_power: float = setting(1.0, "Help.", flag="size power")'),
        "mine.py: options: expected a flag of letters, digits and _ for size_power, found 'size ",
    ),
    (
        (_SPEC, 'ALGORITHM = core.AlgorithmSpec(None, "none", by_size, Options)'),
        "mine.py: label: expected a text, found None",
    ),
]


@pytest.mark.parametrize(("change", "message"), _OPTIONS)
def test_settings_that_cannot_be_flags(folder, change, message):
    write_by_size(folder / "mine.py", change)
    found = Caller(None).refused(folder, train, *_RUN)
    assert found.startswith(f"{folder}/{message}")


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "secure_bits",
        "lanes",
        "digits_keep",
        "data",
        "output_dir",
        "profile",
        "output",
        "v",
    ],
)
def test_a_setting_cannot_have_the_name_of_another_flag(folder, name):
    """Of a run, an aggregation, a runtime, a task, a binary, another binary, or absl itself."""
    write_by_size(folder / "mine.py", (_POWER, f'{name}: int = setting(1, "Help.")'))
    message = f"mine.py: options: expected names that no other flag has, found {name}"
    assert Caller(None).refused(folder, train, *_RUN) == message


def test_a_setting_of_an_algorithms_name_has_its_type(folder):
    write_by_size(folder / "mine.py", (_POWER, 'q: int = setting(1, "Help.")'))
    message = "mine.py: options: expected q to be float, as that of q_ffl, found int"
    assert Caller(None).refused(folder, train, *_RUN) == message


def test_optional_settings_may_be_written_either_way(call, folder):
    more = 'size_power: "float | None" = setting(1.0, "Help.")'
    listed = 'parts: "tuple[int, ...]" = setting((1,), "Help.")'
    write_by_size(folder / "mine.py", (_POWER, f"{more}\n    {listed}"))
    outcome = call(train, *_RUN, "--size_power=2", "--parts=1,2")
    assert outcome.status == 0, outcome


_CHECK = "    def __post_init__(self):\n        super().__post_init__()\n"


def test_checks_of_the_users_own(folder):
    lines = f"{_POWER}\n\n{_CHECK}        assert self.size_power != 3"
    write_by_size(folder / "mine.py", (_POWER, lines))
    message = Caller(None).refused(folder, train, *_RUN, "--size_power=3")
    assert message.startswith("mine.py: options fails: ") or "/mine.py: options fails: " in message
    assert "assert self.size_power != 3" in message and "AssertionError" in message


_BUILD = "def by_size(problem, options):\n"
_STEPS = 'steps=(core.CommunicationStep("training", lambda state: state.weights, work, bounds),),'
_NEXT_STATE = "return core.average_and_apply(optimizer, state, total.weighted_delta, total.beta)"
_BOUNDS = "return core.training_bounds(model, heaviest)(limits)"
_OUTPUT = "return output._replace(weighted_delta=delta, beta=beta)"
_COLUMNS = "columns=core.training_columns(model, while_training=True),"
_INITIALIZE = "initialize=lambda: core.initial_model(model, optimizer),"
_SHORTER = (
    "shorter = [tf.concat([w, w], 0) for w in state.weights.trainable]\n        return "
    "state._replace(weights=state.weights._replace(trainable=shorter))"
)
_NORMS = "columns=(core.Column(core.ReportField('norm', 'a norm'), lambda r: {}),),"

# (text, in its place, message, the user's own line if code failed)
_FUNCTIONS = [
    (_BUILD, f"{_BUILD}    problem.nothing\n", "build fails: ", "problem.nothing"),
    (_BUILD, f"{_BUILD}    return 3\n", "build: expected an Algorithm, found int", ""),
    (_BUILD, "def by_size(problem):\n", "build fails: TypeError: by_size() takes 1 positional", ""),
    (
        "problem=problem,",
        "problem=model,",
        "build: expected problem to be the Problem that it was given, found Model",
        "",
    ),
    ('name="by_size"', "name=3", "build: expected name to be str, found 3", ""),
    (_STEPS, "steps=(),", "build: expected steps to be a tuple of at least one, found none", ""),
    (
        _STEPS,
        "steps=(work,),",
        "build: expected a CommunicationStep in steps, found HashablePartial",
        "",
    ),
    (
        _STEPS,
        f"{_STEPS[:-1]} * 2,",
        "build: expected steps of different names, found two of 'training'",
        "",
    ),
    (
        "power=options.size_power,\n    )",
        "power=[options.size_power],\n    )",
        "build: expected a function or a HashablePartial with hashable arguments as client_work of "
        "step 'training', found unhashable type: 'list'",
        "",
    ),
    (
        _BOUNDS,
        "return core.TrainingState(1, 2)",
        "step 'training': expected bounds of weighted_delta, beta, domain_losses, ",
        "",
    ),
    (
        _BOUNDS,
        f"{_BOUNDS}._replace(beta=1.0)",
        "step 'training', beta: expected a Bound, found float",
        "",
    ),
    (_BOUNDS, "return limits.nothing", "bounds of step 'training' fails: ", "limits.nothing"),
    (_OUTPUT, "return [delta, beta]", "step 'training': expected clients to send a named", ""),
    (
        _OUTPUT,
        "return core.ClientResult(output, beta)",
        "step 'training': expected client_work to return no ClientResult, as "
        "keeps_client_state=False says",
        "",
    ),
    (
        _OUTPUT,
        "return output._replace(beta=tf.cast(beta, tf.float64))",
        "step 'training', beta: expected float32 or int64 tensors, which can be summed, found "
        "float64",
        "",
    ),
    (
        _OUTPUT,
        "raise ValueError('no')",
        "client_work of step 'training' fails: ",
        "raise ValueError",
    ),
    (
        "lambda state: state.weights, work",
        "lambda state: state.nothing, work",
        "broadcast of step 'training' fails: ",
        "state.nothing",
    ),
    (
        _NEXT_STATE,
        "return core.TrainingState([w[:0] for w in state.weights.trainable], ())",
        "expected finish to return a state of the structure that initialize returned, found ",
        "",
    ),
    (
        _NEXT_STATE,
        _SHORTER,
        "expected finish to return a state of the shapes and dtypes that initialize returned, ",
        "",
    ),
    (
        _NEXT_STATE,
        "return 3",
        "expected finish to return a state of the structure that initialize returned, found ",
        "",
    ),
    (_NEXT_STATE, "return total.nothing", "finish fails: ", "total.nothing"),
    (_COLUMNS, "columns=3,", "build: expected columns to be a tuple, found int", ""),
    (
        _COLUMNS,
        "columns=(3,),",
        "build: expected a Column of a ReportField in columns, found 3",
        "",
    ),
    (
        _COLUMNS,
        f"columns=2 * {_COLUMNS.partition('=')[2]}",
        "build: expected columns of different names, found two of 'first_epoch/loss'",
        "",
    ),
    (
        _COLUMNS,
        _NORMS.format("tf.ones([3])"),
        "column 'norm': expected shape [], found (3,)",
        "",
    ),
    (_COLUMNS, _NORMS.format("r.nothing"), "column 'norm' fails: ", "r.nothing"),
    (
        _COLUMNS,
        f"{_COLUMNS}\n        models=lambda state: {{}},",
        "models: expected a mapping of names to ModelWeights, ",
        "",
    ),
    (
        _COLUMNS,
        f"{_COLUMNS}\n        models=lambda state: {{'a': 3}},",
        "models: expected ModelWeights under 'a', found",
        "",
    ),
    (
        _INITIALIZE,
        "initialize=lambda: nothing,",
        "initialize fails: ",
        "initialize=lambda: nothing",
    ),
]


@pytest.mark.parametrize(("there", "instead", "message", "line"), _FUNCTIONS)
def test_functions_that_return_something_else_or_fail(call, folder, there, instead, message, line):
    write_by_size(folder / "mine.py", (there, instead))
    (folder / "runs").mkdir()
    found = call.refused(folder, train, *_RUN)
    _, _, rest = found.partition("mine.py: ")
    assert rest.startswith(message), found
    assert line in rest


@pytest.mark.parametrize("runtime", ["cohort", "tff"])
def test_every_runtime_tells_it_alike(call, folder, runtime):
    for there, instead, message in (
        (_OUTPUT, "raise ValueError('no')", "client_work of step 'training' fails: "),
        (_NEXT_STATE, "return 3", "expected finish to return a state of the structure"),
    ):
        write_by_size(folder / "mine.py", (there, instead))
        found = call.refused(folder, train, *_RUN, f"--runtime={runtime}")
        assert f"mine.py: {message}" in found
