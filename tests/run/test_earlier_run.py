"""What a run takes over from an earlier one, and which differences make it another."""

from typing import Any, Optional

import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.run.spec import (
    CHANGEABLE,
    RunSpec,
    changes_of_settings,
    differences,
    inheriting,
    resolve,
)

_EARLIER = resolve(
    "digits",
    {"seed": 3, "window": 4, "rounds": 7, "aggregation": "secure", "secure_max_examples": 50},
    {"num_clients": 9},
)


def _inheriting(given: dict[str, Any], options: Optional[dict[str, Any]] = None) -> RunSpec:
    return inheriting(_EARLIER, given, options or {}, None, None)


def test_what_is_not_given_is_as_it_was():
    assert _inheriting({}) == _EARLIER
    longer = _inheriting({"rounds": 9, "runtime": "tff"})
    expected = {**_EARLIER.flags(), "rounds": 9, "runtime": "tff"}
    assert longer.flags() == expected
    assert longer.given == {"rounds", "runtime"}


def test_paths_are_as_they_were_unless_they_are_given(tmp_path):
    options = {"model": str(tmp_path / "model.py")}
    earlier = resolve("custom", {}, options, data=tmp_path / "s.sqlite")
    assert inheriting(earlier, {}, {}, None, None) == earlier
    moved = inheriting(
        earlier, {}, {"model": tmp_path / "new.py"}, None, tmp_path / "new" / "s.sqlite"
    )
    assert moved.data == str(tmp_path / "new" / "s.sqlite")
    both = [
        f"--data is {earlier.data} there and {moved.data} here",
        f"--model is {options['model']} there and {tmp_path / 'new.py'} here",
    ]
    assert differences(earlier, moved, {}) == both
    # Whoever reads them compares what is in them with what the fingerprint knows.
    assert differences(earlier, moved, {"data": "1", "vocabulary": "2"}) == both[1:]
    assert differences(earlier, moved, {"data": "1", "model": "3"}) == []


def test_all_that_may_not_be_otherwise_is_told():
    other = _inheriting(
        {"window": 5, "seed": 4, "rounds": 8, "secure_max_examples": 60}, {"num_clients": 10}
    )
    assert differences(_EARLIER, other, {}) == [
        "--digits_num_clients is 9 there and 10 here",
        "--secure_max_examples is 50 there and 60 here",
        "--seed is 3 there and 4 here",
        "--window is 4 there and 5 here",
    ]


def test_of_another_algorithm_or_task_only_what_was_given_is_told():
    other = resolve("digits", {"algorithm": "fed_avg", "seed": 5}, {})
    assert differences(_EARLIER, other, {}) == [
        "--aggregation is secure there and plain here",
        "--algorithm is agnostic_fed_avg there and fed_avg here",
        "--seed is 3 there and 5 here",
    ]
    toy = resolve("toy_regression", {"aggregation": "secure", "window": 5}, {})
    assert differences(_EARLIER, toy, {}) == [
        "--task is digits there and toy_regression here",
        "--window is 4 there and 5 here",
    ]


_OTHER: dict[str, Any] = {
    "runtime": "tff",
    "rounds": 9,
    "evaluate_every": 3,
    "evaluation_clients": 5,
    "worst_min_examples": 20,
    "client_percentiles": (25.0, 75.0),
    "checkpoint_every": 2,
    "keep_checkpoints": 7,
}


@pytest.mark.parametrize("flag", list(CHANGEABLE))
def test_what_may_change_may_and_is_told_where_rows_stay_as_they_are(flag):
    assert set(_OTHER) == set(CHANGEABLE)
    other = _inheriting({flag: _OTHER[flag]})
    assert other != _EARLIER
    assert differences(_EARLIER, other, {}) == []
    lines = changes_of_settings(_EARLIER, other)
    assert len(lines) == (flag not in ("rounds", "checkpoint_every", "keep_checkpoints"))
    assert all(line.startswith(f"--{flag} was ") for line in lines)
    assert changes_of_settings(_EARLIER, _EARLIER) == []


def test_a_change_is_told_in_words():
    assert changes_of_settings(_EARLIER, _inheriting({"evaluation_clients": 5})) == [
        "--evaluation_clients was not given until now and is 5: evaluations of earlier rounds stay "
        "as they are"
    ]


def test_a_change_of_several_numbers_is_told_as_flags_have_them():
    (line,) = changes_of_settings(_EARLIER, _inheriting({"client_percentiles": (25.0, 75.0)}))
    assert line.startswith(
        "--client_percentiles was 10.0,50.0,90.0,95.0 until now and is 25.0,75.0: columns of "
    )


def test_what_has_no_effect_on_the_earlier_run_is_refused():
    with pytest.raises(UserError, match=r"^--q has no effect with --algorithm=agnostic_fed_avg"):
        _inheriting({"q": 2.0})
