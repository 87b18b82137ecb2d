"""A trained model as a SavedModel with named signatures."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from tff_agnostic.deployment.folders import tensorflow_writes
from tff_agnostic.saving.signatures import PREDICT, ServedModel
from tff_agnostic.saving.trained_model import TrainedModel, inputs_by_name


def write(trained: TrainedModel, path: Path) -> dict[str, Any]:
    """Writes the folder; returns the inputs and outputs of its signatures."""
    served = ServedModel(trained)
    signatures = served.signatures()
    # Nobody differentiates it, and the gradients of recurrent layers are large.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with tensorflow_writes():
        tf.saved_model.save(served, str(path), signatures, options)
    return {
        "signatures": {
            name: {
                "inputs": _described(dict(f.structured_input_signature[1])),
                "outputs": _described(f.structured_outputs),
            }
            for name, f in signatures.items()
        }
    }


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x."""
    loaded = tf.saved_model.load(str(path))
    predict = loaded.signatures[PREDICT]
    structure = trained.output_structure()
    names = trained.output_names()

    def of_x(x: Any) -> Any:
        # The signature does not hold the variables that it reads: `loaded` does.
        _ = loaded
        found = predict(**{n: tf.convert_to_tensor(v) for n, v in inputs_by_name(x).items()})
        return tf.nest.pack_sequence_as(structure, [found[name] for name in names])

    return of_x


def _described(specs: dict[str, Any]) -> dict[str, str]:
    return {name: f"{spec.dtype.name}{spec.shape.as_list()}" for name, spec in specs.items()}
