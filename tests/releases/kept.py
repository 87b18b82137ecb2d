"""Folders of config format 8, one of each kind: how they were made, and copies that go on.

    .venv/bin/python -m tests.releases.kept FOLDER

makes them anew, with the code of today; those in `format_8/` are of the code of 24 November 2026.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parent / "format_8"
_ROOT = Path(__file__).parents[2]
# What stands for the folder in the files that were kept.
_PLACE = "KEPT"

_SAVED = ("--rounds=6", "--evaluate_every=3", "--checkpoint_every=3")
_TOY = (
    *("--task=toy_regression", "--toy_regression_num_clients=8", "--clients_per_round=4"),
    *("--client_epochs=2", "--client_learning_rate=0.05", *_SAVED),
)
_BOUNDS = ("--secure_max_examples=40", "--secure_max_loss=10")
_SECURE = ("--aggregation=secure", *_BOUNDS)
# By the names of their folders. What runs read lies beside them.
RUNS: Mapping[str, tuple[str, ...]] = {
    "private_tree": (
        *("train", *_TOY, *_BOUNDS, "--privacy=tree", "--noise_multiplier=2"),
        *("--cohort_sampling=turns", "--private_evaluation", "--evaluation_noise_multiplier=4"),
    ),
    "private_of_clients": (
        *("train", *_TOY, *_SECURE, "--privacy=distributed", "--noise_multiplier=0.8"),
        *("--cohort_sampling=poisson", "--noise_generator=secure"),
    ),
    "delta_fl": ("train", *_TOY, "--algorithm=delta_fl", "--conformity=0.6,1.0"),
    "fed_boost": (
        *("train", "--task=unigram", f"--data={_PLACE}/texts.sqlite", "--clients_per_round=3"),
        *(f"--base_predictors={_PLACE}/predictors.npz", "--algorithm=fed_boost", "--budget=1"),
        *_SAVED,
    ),
}
SEARCHES: Mapping[str, tuple[str, ...]] = {
    "tune": (
        *("tune", "--task=digits", "--digits_num_clients=8", "--digits_num_test_clients=2"),
        *("--digits_heldout_share=0.2", "--algorithms=fed_avg", "--trials=3", "--rounds=2"),
        *("--evaluate_every=1", "--clients_per_round=2"),
        "--search=client_learning_rate=log:0.01..1",
    ),
    "compare": ("compare", *_TOY, "--algorithms=fed_avg,agnostic_fed_avg", "--trials=2"),
    "frontier": (
        *("frontier", *_TOY, "--algorithms=agnostic_fed_avg", "--trials=1"),
        "--grid_points=2",
    ),
}
EXPORTS: Mapping[str, tuple[str, ...]] = {
    # The graph of ChaCha20 alone would take 600 kB.
    "export": ("export", f"--checkpoint={_PLACE}/private_tree", "--noise_generator=philox"),
    "export_of_evaluation": ("export", f"--checkpoint={_PLACE}/delta_fl", "--kind=evaluation"),
}


def copy_of(name: str, folder: Path) -> Path:
    """Returns a copy of what was kept, as it would lie on this machine."""
    there = folder / name
    shutil.copytree(KEPT / name, there)
    for path in there.rglob("config.json"):
        path.write_text(path.read_text().replace(f'"{_PLACE}/', f'"{KEPT}/'))
    return there


def _make(kept: Path) -> None:
    kept.mkdir()
    rows = ["user,country,split,words"]
    for k in range(24):
        words = " ".join(f"w{(k * i * i) % (3 if k % 2 else 7)}" for i in range(1, 13))
        rows.append(f"u{k},{'ab'[k % 2]},{('train', 'train', 'test')[k // 8]},{words}")
    (kept / "texts.csv").write_text("\n".join(rows) + "\n")
    columns = ("--client_column=user", "--domain_column=country", "--split_column=split")
    made = (f"--input={kept / 'texts.csv'}", "--text_column=words", *columns)
    _run("import_data", "--format=csv", *made, f"--output={kept / 'texts.sqlite'}")
    store = f"--data={kept / 'texts.sqlite'}"
    _run("base_predictors", store, f"--output={kept / 'predictors.npz'}")
    (kept / "texts.csv").unlink()
    for name, command in {**RUNS, **SEARCHES, **EXPORTS}.items():
        there = (argument.replace(_PLACE, str(kept)) for argument in command)
        _run(*there, f"--output_dir={kept / name}")
    for pattern in ("*.png", "*.html", "*.lock", "*.tfevents.*", "*.keras"):
        for path in kept.rglob(pattern):
            path.unlink()
    for path in (*kept.rglob("*.json"), *kept.rglob("*.md")):
        path.write_text(path.read_text().replace(f"{kept}/", f"{_PLACE}/"))


def _run(*command: str) -> None:
    subprocess.run([_ROOT / "run", *command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    _make(Path(sys.argv[1]).resolve())
