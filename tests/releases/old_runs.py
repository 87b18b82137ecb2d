"""Runs of earlier releases as they were left, and the commands that made them."""

import shutil
from collections.abc import Mapping
from pathlib import Path

RELEASE = Path(__file__).parent / "0.1.0"
# Resolved, as a run has it.
_DATA = (Path(__file__).parents[2].parent / "shared" / "data").resolve()
# What stands for folders in the files that were kept.
_PLACES = {"RELEASE": RELEASE, "DATA": _DATA}

_ROUNDS = ("--rounds=12", "--evaluate_every=3", "--checkpoint_every=6")
_DIGITS = ("--task=digits", *_ROUNDS)
# By the names of their folders.
RUNS: Mapping[str, tuple[str, ...]] = {
    "digits_plain": _DIGITS,
    "digits_ray": (*_DIGITS, "--runtime=ray"),
    "digits_tff_secure": (*_DIGITS, "--runtime=tff", "--aggregation=secure"),
    "digits_fed_avg_secure": (*_DIGITS, "--algorithm=fed_avg", "--aggregation=secure"),
    "texts": (
        *("--task=two_domain_lm", f"--data={RELEASE / 'clients.sqlite'}", *_ROUNDS),
        *("--two_domain_lm_sequence_length=6", "--two_domain_lm_embedding=4"),
        *("--two_domain_lm_units=6", "--clients_per_round=5"),
        # To vectorise a model of sentences takes longer than the rounds.
        "--client_mode=streamed",
    ),
    "adult_target": (
        *("--task=adult", f"--data_dir={_DATA / 'adult'}", *_ROUNDS),
        *("--algorithm=fed_avg_target_only", "--target_domain=doctorate"),
    ),
}
LAST = "checkpoints/round_00000012.npz"


def missing_data(name: str) -> str:
    """Returns why a run cannot go on here, or nothing."""
    if name.startswith("adult") and not (_DATA / "adult" / "adult.data").is_file():
        return f"UCI's Adult files are not in {_DATA / 'adult'}"
    return ""


def copy_of(name: str, folder: Path) -> Path:
    """Returns the folder of a run, whole, as it would lie on this machine."""
    run = folder / name
    shutil.copytree(RELEASE / name, run)
    config = (run / "config.json").read_text()
    for place, path in _PLACES.items():
        config = config.replace(f'"{place}/', f'"{path}/')
    (run / "config.json").write_text(config)
    return run


def interrupted(name: str, folder: Path) -> Path:
    """Returns the same as if it had been killed after its first checkpoint."""
    run = copy_of(name, folder)
    (run / LAST).unlink()
    (run / "result.json").unlink()
    return run
