"""A family of models: one run with a model for each level of Delta-FL."""

import json
from pathlib import Path

import numpy as np
import pytest

from binaries import compare, evaluate, export, train
from tests.binaries.harness import TOY, Caller
from tff_agnostic.metrics.metrics_file import read_history

_FAMILY = (*TOY, "--algorithm=delta_fl", "--theta=0.3,1", "--evaluate_every=1")
_LEVELS = ("conformity_0.3", "conformity_1")


@pytest.fixture(scope="module")
def family(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run of three rounds, and what it printed."""
    folder = tmp_path_factory.mktemp("family") / "run"
    outcome = call(train, *_FAMILY, "--rounds=3", f"--output_dir={folder}")
    assert outcome.status == 0, outcome
    return folder, outcome.out


@pytest.mark.slow
def test_files_hold_every_level(family):
    folder, _ = family
    columns = read_history(folder / "metrics.csv")
    for level in _LEVELS:
        assert f"threshold/{level}" in columns
        assert np.all(columns[f"kept_share/{level}"] <= 1)
    np.testing.assert_allclose(columns["kept_share/conformity_0.3"], 0.3, rtol=1e-5)
    np.testing.assert_allclose(columns["kept_share/conformity_1"], 1.0, rtol=1e-6)
    # The first level is the main model, and has the columns of any run.
    assert "test/worst loss" in columns
    assert "test[conformity_1]/worst loss" in columns
    result = json.loads((folder / "result.json").read_text())
    assert result["main_model"] == "conformity_0.3"
    assert list(result["models"]) == ["conformity_1"]


@pytest.mark.nightly
def test_it_goes_on_to_the_same_bytes(call, folder, family):
    for more in (["--rounds=2"], ["--rounds=3", "--resume"]):
        outcome = call(train, *_FAMILY, *more, "--output_dir=run")
        assert outcome.status == 0, outcome
    for name in ("metrics.csv", "result.json"):
        assert (folder / "run" / name).read_bytes() == (family[0] / name).read_bytes()


@pytest.mark.nightly
def test_it_is_evaluated_and_compared(call, folder, family):
    outcome = call(evaluate, f"--checkpoint={family[0]}", "--output=again.json")
    assert outcome.status == 0, outcome
    again, first = (
        json.loads(path.read_text()) for path in (folder / "again.json", family[0] / "result.json")
    )
    assert again["domains"] == first["domains"]
    arms = "--arms=fed_avg;two=delta_fl:threshold=lagged;tracked=delta_fl:threshold=tracked"
    outcome = call(compare, *TOY, "--rounds=2", "--trials=1", arms, "--output_dir=compared")
    assert outcome.status == 0, outcome


class TestChoice:
    """Clients choose a model by a share of their examples."""

    @pytest.mark.slow
    def test_table_and_json_have_every_way_to_choose(self, call, folder, family):
        outcome = call(
            *(evaluate, f"--checkpoint={family[0]}", "--adaptation_share=0.4", "--output=c.json"),
        )
        assert outcome.status == 0, outcome
        for row in (*_LEVELS, "each client's choice", "best in hindsight"):
            assert f"\n{row:>20}" in outcome.out, outcome.out
        found = json.loads((folder / "c.json").read_text())["choice"]
        assert sum(found["num_choices"].values()) == found["clients"]["chose"] > 0
        losses = {
            name: report["overall"]["over_clients"]["loss"]["mean"]
            for name, report in (
                *found["models"].items(),
                *((name, found[name]) for name in ("chosen", "in_hindsight")),
            )
        }
        assert losses["in_hindsight"] <= min(losses.values())
        whole = json.loads((folder / "c.json").read_text())["overall"]["num_examples"]
        assert 0.4 * whole < found["chosen"]["overall"]["num_examples"] < 0.8 * whole

    @pytest.mark.nightly
    def test_what_secure_sums_clip_is_said_of_the_choice_too(self, call, family):
        outcome = call(
            *(evaluate, f"--checkpoint={family[0]}", "--adaptation_share=0.4"),
            *("--aggregation=secure", "--limit_loss=0.5"),
        )
        assert outcome.status == 0, outcome
        *_, last = outcome.out.splitlines()
        assert last.startswith("values beyond the bounds of secure sums, which were clipped: ")

    @pytest.mark.nightly
    def test_a_family_may_be_some_of_its_models(self, call, folder, family):
        outcome = call(
            *(evaluate, f"--checkpoint={family[0]}", "--models=conformity_1", "--output=one.json"),
        )
        assert outcome.status == 0, outcome
        one = json.loads((folder / "one.json").read_text())
        assert "models" not in one
        of_family = json.loads((family[0] / "result.json").read_text())["models"]
        assert one["overall"] == of_family["conformity_1"]["overall"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                ["--models=conformity_0.2"],
                "--models: unknown model of {} 'conformity_0.2': did you mean ",
            ),
            (["--models="], "--models: expected some of conformity_0.3, conformity_1, found none"),
            (
                ["--adaptation_share=1"],
                "--adaptation_share: expected above 0 and below 1, found 1.0",
            ),
            (
                ["--models=conformity_1", "--adaptation_share=0.5"],
                "--adaptation_share: expected a family of models to choose from, found one: "
                "conformity_1",
            ),
            (
                ["--adaptation_share=1e-3"],
                "--adaptation_share=0.001: expected a share that leaves each client an example to "
                "choose by, found ",
            ),
        ],
    )
    def test_what_cannot_be_chosen_is_one_line(self, call, folder, family, given, message):
        found = call.refused(folder, evaluate, f"--checkpoint={family[0]}", *given)
        assert found.startswith(message.format(family[0])), found


def test_a_plan_cannot_hold_the_survey(call, folder, family):
    message = call.refused(folder, export, f"--checkpoint={family[0]}", "--output_dir=plan")
    assert message == (
        "--algorithm: expected one step between server and devices in a round, as plans of the "
        "platform have, found 2 steps of delta_fl (survey, training); it has one with "
        "threshold=lagged or threshold=tracked"
    )
