"""Users' algorithms with mistakes: one line that names the file, and the line where code failed."""

import pytest

from binaries import compare, train
from tests.algorithms.user_files import write_by_size
from tests.binaries.harness import TOY, Caller

_RUN = (*TOY, "--rounds=1", "--algorithm=mine.py", "--output_dir=run")
_POWER = (
    'size_power: float = setting(1.0, "Power of a client\'s size that it weighs.", at_least=0.0)'
)
_SPEC = 'ALGORITHM = AlgorithmSpec("By size", "none", by_size, Options)'
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
        (_SPEC, 'ALGORITHM = AlgorithmSpec("By size", "none", by_size, dict)'),
        "mine.py: options: expected a subclass of Settings, found dict",
    ),
    (
        (_SPEC, 'ALGORITHM = AlgorithmSpec("By size", "none", by_size, Options())'),
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
        (_SPEC, 'ALGORITHM = AlgorithmSpec(None, "none", by_size, Options)'),
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
_EXCHANGES = 'exchanges=(Exchange("training", lambda state, sums: state.weights, client, bounds),),'
_NEXT_STATE = "return TrainingState(update.weights, update.optimizer_state), report"
_BOUNDS = "return training_output_bounds(model, limits, limits.max_examples**options.size_power)"
_ANSWER = "return output._replace(weighted_delta=delta, beta=beta)"
_MODELS = 'models=lambda state: {"model": state.weights},'
_INITIALIZE = "initialize=lambda: initial_training_state(model, optimizer),"

# (text, in its place, message, the user's own line if code failed)
_FUNCTIONS = [
    (_BUILD, f"{_BUILD}    problem.nothing\n", "build fails: ", "problem.nothing"),
    (_BUILD, f"{_BUILD}    return 3\n", "build: expected an Algorithm, found int", ""),
    (_BUILD, "def by_size(problem):\n", "build fails: TypeError: by_size() takes 1 positional", ""),
    (
        _EXCHANGES,
        "exchanges=(),",
        "build: expected a tuple of at least one exchange, found none",
        "",
    ),
    (
        _EXCHANGES,
        "exchanges=(client,),",
        "build: expected a tuple of exchanges, found Client in",
        "",
    ),
    (
        _EXCHANGES,
        f"{_EXCHANGES[:-2]}) * 2,".replace(",) * 2", ",) * 2"),
        "build: expected exchanges of different names, found two of 'training'",
        "",
    ),
    (
        "client_data_spec=model.client_data_spec()",
        "client_data_spec=None",
        "build: expected as client_data_spec what problem.model.client_data_spec() returns, found",
        "",
    ),
    (
        "client_data_spec=model.client_data_spec()",
        "client_data_spec={'x': 1}",
        "build: expected as client_data_spec what problem.model.client_data_spec() returns, found",
        "",
    ),
    ("seed=problem.seed", "seed='a'", "build: expected seed to be int, found 'a'", ""),
    (
        "class Client:\n    model: Model\n",
        "class Client:\n    __hash__ = None\n    model: Model\n",
        "build: expected a function or a frozen dataclass of hashable fields as client of exchange "
        "'training', found unhashable type: 'Client'",
        "",
    ),
    (
        _BOUNDS,
        "return TrainingState(1, 2)",
        "exchange 'training': expected bounds of weighted_delta, beta, domain_losses, ",
        "",
    ),
    (
        _BOUNDS,
        f"{_BOUNDS}._replace(beta=1.0)",
        "exchange 'training', beta: expected a Bound, found float",
        "",
    ),
    (_BOUNDS, "return limits.nothing", "bounds of exchange 'training' fails: ", "limits.nothing"),
    (
        _ANSWER,
        "return [delta, beta]",
        "exchange 'training': expected clients to answer with a nam",
        "",
    ),
    (
        _ANSWER,
        "return output._replace(beta=tf.cast(beta, tf.float64))",
        "exchange 'training', beta: expected float32 or int64 tensors, which can be summed, found "
        "float64",
        "",
    ),
    (
        _ANSWER,
        "raise ValueError('no')",
        "client of exchange 'training' fails: ",
        "raise ValueError",
    ),
    (
        "lambda state, sums: state.weights, client",
        "lambda state, sums: state.nothing, client",
        "prepare of exchange 'training' fails: ",
        "state.nothing",
    ),
    (
        _NEXT_STATE,
        "return TrainingState([w[:0] for w in update.weights.trainable], ()), report",
        "expected finish to return a state of the structure that initialize returned, found ",
        "",
    ),
    (
        _NEXT_STATE,
        "shorter = [tf.concat([w, w], 0) for w in update.weights.trainable]\n        return "
        "state._replace(weights=state.weights._replace(trainable=shorter)), report",
        "expected finish to return a state of the shapes and dtypes that initialize returned, ",
        "",
    ),
    (_NEXT_STATE, "return 3", "finish: expected a pair (state, report), found int", ""),
    (_NEXT_STATE, "return state, 1.0", "finish: expected a mapping as report, found float", ""),
    (
        _NEXT_STATE,
        "return state, {**report, 'more': 1.0}",
        "finish: expected a report of what is described, found a difference: more",
        "",
    ),
    (
        _NEXT_STATE,
        "return state, {**report, 'finalizer': {'update_norm': tf.ones([3])}}",
        "finish: expected update_norm of shape [] in the report, found (3,)",
        "",
    ),
    (_NEXT_STATE, "return state, report.nothing", "finish fails: ", "report.nothing"),
    (
        _MODELS,
        "models=lambda state: {},",
        "models: expected a mapping of names to ModelWeights, ",
        "",
    ),
    (
        _MODELS,
        "models=lambda state: {'a': 3},",
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
        (_ANSWER, "raise ValueError('no')", "client of exchange 'training' fails: "),
        (_NEXT_STATE, "return 3", "finish: expected a pair (state, report), found int"),
    ):
        write_by_size(folder / "mine.py", (there, instead))
        found = call.refused(folder, train, *_RUN, f"--runtime={runtime}")
        assert f"mine.py: {message}" in found
