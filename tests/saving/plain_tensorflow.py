"""Script that runs saved models without this package and TFF: python plain_tensorflow.py FOLDER.

Each sub-folder of FOLDER contains saved models, with their inputs in x.npz, or scripts. A saved
model's outputs are written to FILE.npz, a script's arrays to SCRIPT.npz.
"""

import importlib.abc
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

Arrays = dict[str, Any]
BLOCKED = ("tff_agnostic", "tensorflow_federated", "binaries", "tests", "plan_runner")


class _Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")


def _keras(path: Path, inputs: Arrays) -> Arrays:
    model = tf.keras.models.load_model(path, compile=False)
    x = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    return {"predictions": model(x, training=False).numpy()}


def _saved_model(path: Path, inputs: Arrays) -> Arrays:
    loaded = tf.saved_model.load(str(path))
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    answer = loaded.signatures["predict"](**tensors)
    more = {}
    if "next_words" in loaded.signatures:
        texts = _texts(path)
        best = loaded.signatures["next_words"](text=texts, k=tf.constant(2))
        more = {f"next_{name}": value for name, value in best.items()}
        default = loaded.signatures["serving_default"](text=texts)
        more.update({f"default_{name}": value for name, value in default.items()})
    else:
        default = loaded.signatures["serving_default"]
        takes_texts = list(default.structured_input_signature[1]) == ["text"]
        more = default(text=_texts(path)) if takes_texts else default(**tensors)
        if takes_texts:
            more = {f"default_{name}": value for name, value in more.items()}
    return {name: _array(value) for name, value in {**more, **answer}.items()}


def _texts(path: Path) -> "tf.Tensor":
    return tf.constant(json.loads((path.parent / "texts.json").read_text()))


def _array(tensor: "tf.Tensor") -> "np.ndarray":
    # np.savez needs strings of a fixed size.
    return tensor.numpy().astype("S") if tensor.dtype == tf.string else tensor.numpy()


def _tflite(path: Path, inputs: Arrays) -> Arrays:
    run = tf.lite.Interpreter(str(path)).get_signature_runner()
    count = len(next(iter(inputs.values())))
    rows = [run(**{n: v[k : k + 1] for n, v in inputs.items()}) for k in range(count)]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


LOADERS = {".keras": _keras, "_saved_model": _saved_model, ".tflite": _tflite}


def main(folder: Path) -> None:
    for case in sorted(p for p in folder.iterdir() if p.is_dir()):
        for script in sorted(case.glob("*.py")):
            os.chdir(case)
            made = runpy.run_path(str(script)).items()
            np.savez(f"{script}.npz", **{k: v for k, v in made if isinstance(v, np.ndarray)})
        if not (case / "x.npz").exists():
            continue
        with np.load(case / "x.npz") as file:
            inputs = dict(file)
        for ending, load in LOADERS.items():
            for path in sorted(case.glob(f"*{ending}")):
                np.savez(f"{path}.npz", **load(path, inputs))


if __name__ == "__main__":
    sys.meta_path.insert(0, _Blocker())
    import numpy as np
    import tensorflow as tf

    main(Path(sys.argv[1]))
    assert not {name.split(".")[0] for name in sys.modules} & set(BLOCKED)
