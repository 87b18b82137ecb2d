"""Users' algorithms with mistakes: one line that names the file, and the line where code failed."""

import re

import pytest

from binaries import compare, train
from tests import golden
from tests.algorithms.user_files import write_by_size
from tests.binaries.harness import TOY, Caller

_RUN = (*TOY, "--rounds=1", "--algorithm=mine.py", "--output_dir=run")
_POWER = "size_power: Annotated[float, Within(least=0)] = 1.0"


def _without_marks(message: str) -> str:
    """Returns it as every Python has it: some mark a part of the line that failed."""
    return re.sub(r"[ ^]+", " ", message)


@golden.values
def test_a_file_without_an_algorithm(folder, case):
    (folder / "mine.py").write_text(case)
    nothing_starts = Caller(None)
    found = nothing_starts.refused(folder, train, *_RUN)
    # The same wherever it is named.
    for flag in ("--algorithms=fed_avg,mine.py", "--arms=fed_avg;mine.py"):
        assert nothing_starts.refused(folder, compare, *TOY, flag) == found
    return _without_marks(found)


@golden.values
def test_settings_that_cannot_be_flags(folder, case):
    write_by_size(folder / "mine.py", case)
    return _without_marks(Caller(None).refused(folder, train, *_RUN))


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "secure_bits",
        "keep",
    ],
)
def test_a_setting_cannot_have_the_name_of_another_flag(folder, name):
    """The flags are of a run, an aggregation and a task."""
    write_by_size(folder / "mine.py", (_POWER, f"{name}: int = 1"))
    message = f"mine.py: options: expected names that no other flag has, found {name}"
    assert Caller(None).refused(folder, train, *_RUN) == message


def test_a_setting_of_an_algorithms_name_has_its_type(folder):
    write_by_size(folder / "mine.py", (_POWER, "q: int = 1"))
    message = "mine.py: options: expected q to be float, as in q_ffl, found int"
    assert Caller(None).refused(folder, train, *_RUN) == message


@pytest.mark.nightly
def test_optional_settings_may_be_written_either_way(call, folder):
    more = 'size_power: "float | None" = 1.0'
    listed = 'parts: "tuple[int, ...]" = (1,)'
    write_by_size(folder / "mine.py", (_POWER, f"{more}\n    {listed}"))
    outcome = call(train, *_RUN, "--algorithm_options=size_power=2,parts=1,2")
    assert outcome.status == 0, outcome


_NEXT_STATE = "return core.average_and_apply(optimizer, state, total.weighted_delta, total.beta)"
_OUTPUT = "return output._replace(weighted_delta=delta, beta=beta)"


@golden.values
def test_functions_that_return_something_else_or_fail(call, folder, case):
    write_by_size(folder / "mine.py", case)
    (folder / "runs").mkdir()
    return _without_marks(call.refused(folder, train, *_RUN))


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", ["cohort", "tff"])
def test_every_runtime_tells_it_alike(call, folder, runtime):
    for there, instead, message in (
        (_OUTPUT, "raise ValueError('no')", "client_work of step 'training' fails: "),
        (_NEXT_STATE, "return 3", "expected finish to return a state of the structure"),
    ):
        write_by_size(folder / "mine.py", (there, instead))
        found = call.refused(folder, train, *_RUN, f"--runtime={runtime}")
        assert f"mine.py: {message}" in found
