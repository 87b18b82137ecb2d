"""Models that each platform saves, told by plain Keras 2 and plain Keras 3 as they told here.

python -m tests.saving.both_platforms write FOLDER, on each platform; `plain_tensorflow.py`
FOLDER/keras_2 and FOLDER/keras_3, each where that Keras is; and compare FOLDER.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

# Functional with dropout and with two inputs, sequential, within one another, with normalisation,
# and of texts.
CASES = (
    "dense_with_dropout",
    "two_inputs",
    "own_recurrent_layers",
    "nested",
    "frozen_normalization",
    "next_word_lstm",
    "keyboard_cifg",
    "text_mean",
    "logistic_regression",
)
# Each of them from each platform in Keras 3, and in Keras 2 what the reference platform wrote.
_FILES = 3 * len(CASES)


def write(folder: Path) -> None:
    """Writes what this platform saves to where it should load, with what it should tell."""
    from tests.saving.test_formats import _CASES, _trained
    from tff_agnostic.models.keras_platform import KERAS_3, keras_platform
    from tff_agnostic.saving.save import FORMATS
    from tff_agnostic.saving.trained_model import inputs_by_name

    writer = _slug(keras_platform().release)
    for case in CASES:
        model, x = _CASES[case]()
        trained = _trained(model)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model.keras"
            about = FORMATS["keras"].write(trained, path)
            files = {release: path for release in about["loads_in"]}
            if "for_keras_3" in about:
                files[KERAS_3] = path.with_name(about["for_keras_3"])
            for release, file in files.items():
                target = folder / _slug(release) / case
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / f"by_{writer}.keras")
                np.savez(target / "x.npz", **inputs_by_name(x))
                np.save(target / f"by_{writer}.npy", np.asarray(trained.predict(x)))


def compare(folder: Path) -> str:
    """Returns how far plain Keras is from what was told where a model was saved.

    Raises:
        AssertionError: Files are missing, or what they tell is something else.
    """
    worst: dict[str, float] = {}
    for release in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(release.glob("*/*.keras"))
        for file in files:
            expected = np.load(file.with_suffix(".npy"))
            with np.load(f"{file}.npz") as told:
                difference = np.abs(told["predictions"] - expected).max()
            assert np.ptp(expected) > 0.1, file
            assert difference <= 1e-5 * max(1, np.abs(expected).max()), (file, difference)
            worst[release.name] = max(worst.get(release.name, 0.0), float(difference))
    found = len(list(folder.glob("*/*/*.keras.npz")))
    assert found == _FILES, f"expected {_FILES} files, found {found}"
    return ", ".join(f"{name}: {difference:.1g} at most" for name, difference in worst.items())


def _slug(release: str) -> str:
    return release.lower().replace(" ", "_")


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "write":
        write(where)
    else:
        print(compare(where))
