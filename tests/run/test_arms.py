"""What --arms and --algorithms say, as rows of a comparison."""

import pytest

from tests import golden
from tests.algorithms.user_files import write_by_size
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.run.options import options_of_runs
from tff_agnostic.studies.arms import Arm, arms_of_algorithms, parsed_arms


def _arms(text: str) -> dict[str, Arm]:
    return parsed_arms(text, lambda flag, value: options_of_runs()[flag].parsed(value))


def test_an_arm_has_a_label_an_algorithm_and_settings():
    arms = _arms("mild=q_ffl:q=0.1;strong=q_ffl:q=5,batch_size=3;agnostic_fed_avg")
    assert arms == {
        "mild": Arm("mild", {"algorithm": "q_ffl", "q": 0.1}),
        "strong": Arm("strong", {"algorithm": "q_ffl", "q": 5.0, "batch_size": 3}),
        "agnostic_fed_avg": Arm(
            ALGORITHMS["agnostic_fed_avg"].label, {"algorithm": "agnostic_fed_avg"}
        ),
    }
    assert list(arms) == ["mild", "strong", "agnostic_fed_avg"]


def test_a_value_may_have_commas_and_spaces_are_no_matter():
    arms = _arms(" half = agnostic_fed_avg:initial_domain_weights=0.5,0.5,window=3 ; fed_avg; ")
    assert arms["half"].settings == {
        "algorithm": "agnostic_fed_avg",
        "initial_domain_weights": (0.5, 0.5),
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
        "fed_avg": Arm("FedAvg (uniform)", {"algorithm": "fed_avg"}),
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
