"""Trained models as TensorFlow Lite files, plain or quantised, which take one example per call."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Callable

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import atomic_file
from tff_agnostic.base.later import tf
from tff_agnostic.base.registry import Registry
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.models.keras_platform import keras_platform, model_layers
from tff_agnostic.models.model import Model
from tff_agnostic.saving.trained_model import TrainedModel, inputs_by_name

NOT_QUANTIZED = "none"


def _leave(converter: tf.lite.TFLiteConverter) -> None:
    del converter


def _int8(converter: tf.lite.TFLiteConverter) -> None:
    # Dynamic-range quantisation: 8 bits for weights of at least 1,024 numbers, float32 for sums.
    converter.optimizations = [tf.lite.Optimize.DEFAULT]


def _float16(converter: tf.lite.TFLiteConverter) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]


# Functions that configure the converter, by the type of the stored weights.
QUANTIZATIONS: Registry[Callable[[tf.lite.TFLiteConverter], None]] = Registry(
    "quantisation", {NOT_QUANTIZED: _leave, "int8": _int8, "float16": _float16}
)


def write(trained: TrainedModel, path: Path, quantize: str = NOT_QUANTIZED) -> dict[str, Any]:
    """Writes a .tflite file; returns the ops that need the Flex delegate on a device, if any."""
    # Import on demand, as these modules load TensorFlow.
    from tff_agnostic.models.tflite_files import custom_op_names
    from tff_agnostic.saving.saved_model import ServedModel

    served = ServedModel(trained)
    with keras_platform().recurrence_as_loops(_layers(trained.model)):
        predict = served.predict_function(num_examples=1)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([predict], served)
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    QUANTIZATIONS[quantize](converter)
    try:
        content = converter.convert()
    # The converter's errors have no common base class, and their messages are pages long.
    except Exception as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise UserError(f"format tflite: TensorFlow cannot convert this model ({line})") from e
    with atomic_file(path) as file:
        file.write(content)
    ops = custom_op_names(content)
    return {"flex_ops": ops} if ops else {}


def _layers(model: Model) -> list[Any]:
    models = [m for m, _ in model.predictors] if isinstance(model, EnsembleModel) else [model]
    return [
        layer
        for keras_model in (m.keras_model for m in models)
        if keras_model is not None
        for layer in model_layers(keras_model)
    ]


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x, which runs one example after another."""
    with warnings.catch_warnings():
        # Hide the warning of TensorFlow 2.21, which recommends a package that it does not install.
        warnings.filterwarnings("ignore", message="(?s).*tf.lite.Interpreter is deprecated")
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    structure, names = trained.output_structure(), trained.output_names()

    def predict(x: Any) -> Any:
        inputs = {name: np.asarray(value) for name, value in inputs_by_name(x).items()}
        num_examples = len(next(iter(inputs.values())))
        rows = [
            runner(**{name: value[k : k + 1] for name, value in inputs.items()})
            for k in range(num_examples)
        ]
        outputs = [tf.constant(np.concatenate([row[name] for row in rows])) for name in names]
        return tf.nest.pack_sequence_as(structure, outputs)

    return predict
