"""Families of models: a Delta-FL run trains one model for each conformity level."""

from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, train
from tests.support.commands import TOY, Caller
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history

_FAMILY = (*TOY, "--algorithm=delta_fl", "--theta=0.3,1", "--evaluate_every=1")
_LEVELS = ("conformity_0.3", "conformity_1")


@pytest.fixture(scope="module")
def family(call: Caller, tmp_path_factory) -> Path:
    """Folder of a run of two rounds."""
    folder = tmp_path_factory.mktemp("family") / "run"
    call.ok(train, *_FAMILY, "--rounds=2", f"--output_dir={folder}")
    return folder


@pytest.mark.slow
def test_files_have_every_conformity_level(family):
    columns = read_history(family / "metrics.csv")
    for level in _LEVELS:
        assert f"threshold/{level}" in columns
        assert np.all(columns[f"kept_share/{level}"] <= 1)
    np.testing.assert_allclose(columns["kept_share/conformity_0.3"], 0.3, rtol=1e-5)
    np.testing.assert_allclose(columns["kept_share/conformity_1"], 1.0, rtol=1e-6)
    # The first level's model is the main model, whose columns have no model name.
    assert "test/worst loss" in columns
    assert "test[conformity_1]/worst loss" in columns
    result = read_json(family / "result.json")
    assert result["main_model"] == "conformity_0.3"
    assert list(result["models"]) == ["conformity_1"]


@pytest.mark.nightly
def test_run_of_a_family_resumes_to_same_bytes(call, folder, family):
    for more in (["--rounds=1"], ["--rounds=2", "--resume"]):
        call.ok(train, *_FAMILY, *more, "--output_dir=run")
    for name in ("metrics.csv", "result.json"):
        assert (folder / "run" / name).read_bytes() == (family / name).read_bytes()


# --- Each client chooses a model by its losses on a fraction of its examples


@pytest.mark.slow
def test_output_compares_choices_with_single_models(call, folder, family):
    outcome = call.ok(
        *(evaluate, f"--checkpoint={family}", "--adaptation_share=0.4", "--output=c.json")
    )
    for row in (*_LEVELS, "each client's choice", "best in hindsight"):
        assert f"\n{row:>20}" in outcome.out, outcome.out
    actual = read_json(folder / "c.json")["choice"]
    assert sum(actual["num_choices"].values()) == actual["clients"]["chose"] > 0
    losses = {
        name: report["overall"]["over_clients"]["loss"]["mean"]
        for name, report in (
            *actual["models"].items(),
            *((name, actual[name]) for name in ("chosen", "in_hindsight")),
        )
    }
    assert losses["in_hindsight"] <= min(losses.values())
    whole = read_json(folder / "c.json")["overall"]["num_examples"]
    assert 0.4 * whole < actual["chosen"]["overall"]["num_examples"] < 0.8 * whole


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--models=conformity_0.2", "--models: unknown model of "),
        ("--models=", "--models: expected some of conformity_0.3, conformity_1, found none"),
        ("--adaptation_share=1", "--adaptation_share: expected above 0 and below 1, found 1.0"),
        ("--models=conformity_1 --adaptation_share=0.5", "--adaptation_share: expected a family"),
        ("--adaptation_share=1e-3", "--adaptation_share=0.001: expected a share that leaves each"),
    ],
)
def test_rejects_invalid_choices(call, folder, family, flags, message):
    actual = call.refused(folder, evaluate, f"--checkpoint={family}", *flags.split())
    assert actual.startswith(message), actual


def test_export_rejects_rounds_of_two_steps(call, folder, family):
    message = call.refused(folder, export, f"--checkpoint={family}", "--output_dir=plan")
    assert message == (
        "--algorithm: expected one step between server and devices in a round, as plans of the "
        "platform have, found 2 steps of delta_fl (survey, training); it has one with "
        "threshold=lagged or threshold=tracked"
    )
