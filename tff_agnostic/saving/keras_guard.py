"""Rejects Keras files with code: an untrusted file may only contain known layers and numbers.

Keras' safe mode only rejects lambdas in `.keras` files. In both formats, a configuration may make
Keras import modules, and call functions of TensorFlow such as `load_op_library`. Classes that
another library registered may unpickle data. Weights may be pickles, or links to other files. A
Lambda layer in HDF5 is executed. So this module looks up every name in a configuration before Keras
reads it, and rejects unknown names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from tff_agnostic.base.later import h5py, tf
from tff_agnostic.base.user_code import is_user_module

_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"
_ASSETS = "assets/"
_MEMBERS = {_CONFIG, _WEIGHTS, "metadata.json"}
# Maximum ratio of unpacked to packed size: Keras does not compress, and weights compress little.
_MAX_RATIO = 10
# Number of bytes to which any file may unpack, whatever the ratio, as configurations compress well.
_FREE_BYTES = 1 << 26

# Modules to search when a configuration names a class but no module, as layers in HDF5 files do.
_PLACES = ("layers", "layers.experimental", "initializers", "regularizers", "constraints", "models")
_MODULE = "keras"
_APPLICATIONS = "keras.src.applications."
# Classes without a public name, mapped to the private modules that `.keras` files state for them.
_FUNCTIONAL = "Functional"
_MODELS = (_FUNCTIONAL, "Model", "Sequential")
_OPS = ("TFOpLambda", "SlicingOpLambda")
_MEMBER_LAYERS = ("InstanceMethod", "InstanceProperty")
_CLASS_METHOD = "ClassMethod"
_PRIVATE = {
    # Modules of Keras 2 and of Keras 3.
    _FUNCTIONAL: ("keras.src.engine.functional", "keras.src.models.functional"),
    **dict.fromkeys(
        (*_OPS, *_MEMBER_LAYERS, _CLASS_METHOD), ("keras.src.layers.core.tf_op_layer",)
    ),
    # Layers that only exist in HDF5 files.
    "BatchNormalizationV1": (),
    "BatchNormalizationV2": (),
}
# Beginning of the module name that files state for functions of `keras.ops` on symbolic inputs.
# These functions only access tensors.
_KERAS_OPS = "keras.src.ops."
_LAMBDA = "Lambda"
# Beginning of the module names of a library that TFF loads. Its registered layers unpickle
# functions.
_UNPICKLES = "tensorflow_probability."
# Class names that denote plain values in configurations.
_VALUES = (
    "__keras_tensor__",
    "__tensor__",
    "__numpy__",
    "__bytes__",
    "__tuple__",
    "__ellipsis__",
    "TensorShape",
)
_SPECS = ("tf.TensorSpec", "tf.RaggedTensorSpec", "tf.SparseTensorSpec")
_FUNCTION = "function"
_FUNCTIONS = ("activations", "losses", "metrics")

# Functions that TFOpLambda may call, as they only access tensors: all functions of the namespaces
# `_OP_SPACES` except `_NO_OPS`, and the functions `_OP_NAMES`.
_OP_SPACES = {
    "__operators__", "bitwise", "dtypes", "image", "linalg", "math", "nn", "ragged", "signal",
    "sparse", "strings",
}  # fmt: skip
_NO_OPS = {"nn.fixed_unigram_candidate_sampler"}  # Excluded, as it reads a file.
_OP_NAMES = {
    "argsort", "batch_to_space", "bitcast", "boolean_mask", "broadcast_to", "cast",
    "clip_by_global_norm", "clip_by_norm", "clip_by_value", "concat", "convert_to_tensor",
    "dynamic_partition", "dynamic_stitch", "einsum", "ensure_shape", "expand_dims", "eye",
    "fill", "gather", "gather_nd", "histogram_fixed_width", "identity", "linspace", "meshgrid",
    "norm", "one_hot", "ones", "ones_like", "pad", "range", "rank", "realdiv", "repeat",
    "reshape", "reverse", "reverse_sequence", "roll", "scatter_nd", "searchsorted",
    "sequence_mask", "shape", "size", "slice", "sort", "space_to_batch", "split", "squeeze",
    "stack", "stop_gradient", "strided_slice", "tensor_scatter_nd_add", "tensor_scatter_nd_max",
    "tensor_scatter_nd_min", "tensor_scatter_nd_sub", "tensor_scatter_nd_update", "tensordot",
    "tile", "transpose", "truncatediv", "truncatemod", "unique", "unique_with_counts",
    "unravel_index", "unstack", "where", "zeros", "zeros_like",
}  # fmt: skip
# Members that a layer may access in ragged and sparse tensors.
_TENSOR_MEMBERS = {
    "bounding_shape", "dense_shape", "flat_values", "indices", "merge_dims",
    "nested_row_lengths", "nested_row_splits", "nested_value_rowids", "nrows", "row_lengths",
    "row_limits", "row_splits", "row_starts", "to_sparse", "to_tensor", "value_rowids",
    "values", "with_flat_values", "with_row_splits_dtype", "with_values",
}  # fmt: skip


def _unknown() -> str:
    return f", which the Keras of TensorFlow {tf.__version__} does not have"


@functools.cache
def _initializers() -> tuple[Any, ...]:
    return (
        tf.constant_initializer,
        tf.ones_initializer,
        tf.random_normal_initializer,
        tf.random_uniform_initializer,
        tf.zeros_initializer,
    )


@functools.cache
def _kinds() -> tuple[Any, ...]:
    return (
        tf.keras.layers.Layer,
        tf.keras.initializers.Initializer,
        tf.keras.regularizers.Regularizer,
        tf.keras.constraints.Constraint,
        tf.keras.losses.Loss,
        tf.keras.metrics.Metric,
        tf.keras.optimizers.Optimizer,
        tf.keras.optimizers.schedules.LearningRateSchedule,
        tf.keras.mixed_precision.Policy,
        # Only Keras 3 has `Operation`.
        getattr(tf.keras, "Operation", tf.keras.layers.Layer),
    )


class UnsafeKerasFile(ValueError):
    """The error for an untrusted Keras file; its message names the rejected part."""


@contextlib.contextmanager
def open_checked(path: Path, allowed: Mapping[str, Any]) -> Iterator[Union[Path, h5py.File]]:
    """Checks a file and yields it for Keras; limits the variables that Keras creates from it.

    Args:
        path: A .keras or .h5 file; its content determines which, as in Keras.
        allowed: Classes and functions that the caller passes to Keras for this file, by name.

    Raises:
        UnsafeKerasFile: If the file contains code, unknown names or links to other files, or
            unpacks to many times its size.
        Exception: Any error from reading a damaged file.
    """
    size = path.stat().st_size
    if path.suffix == ".keras" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, size)
            check_config(json.loads(archive.read(_CONFIG)), allowed)
            with archive.open(_WEIGHTS) as content, h5py.File(content, "r") as weights:
                num_bytes = _checked_weights(weights, archive.getinfo(_WEIGHTS).file_size)
        with tf.variable_creator_scope(_at_most(num_bytes)):
            yield path
    else:
        with h5py.File(path, "r") as file:
            num_bytes = _checked_weights(file, size)
            check_config(json.loads(file.attrs.get("model_config", "null")), allowed)
            with tf.variable_creator_scope(_at_most(num_bytes)):
                yield file


def check_config(config: Any, allowed: Mapping[str, Any]) -> None:
    """Checks the configuration of a model, including all nested objects.

    Args:
        config: Parsed JSON of the configuration.
        allowed: See `open_checked`.

    Raises:
        UnsafeKerasFile: If an object is code, or has an unknown name.
    """
    values = [config]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            if "class_name" in value:
                _check_object(value, allowed)
            values += value.values()
        elif isinstance(value, list):
            values += value


def _check_object(value: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    name, module = value["class_name"], value.get("module")
    registered = value.get("registered_name", name)
    config = value.get("config")
    if not isinstance(name, str) or not isinstance(module, (str, type(None))):
        raise UnsafeKerasFile(f"an object of the class {name!r:.60}")
    if name == _FUNCTION:
        _check_function(config, module, registered, allowed)
    elif name == "TypeSpec":
        if value.get("type_spec") not in _SPECS:
            raise UnsafeKerasFile(f"the type {value.get('type_spec')!r:.60}, which is not known")
    elif name not in _VALUES and not _is_own(registered, allowed):
        # Check the registered name, which Keras looks up first.
        if registered not in (None, name):
            raise UnsafeKerasFile(f"the class {registered!r:.60}{_unknown()}")
        _check_class(name, module, config if isinstance(config, Mapping) else {})


def _check_class(name: str, module: Optional[str], config: Mapping[str, Any]) -> None:
    if name in (_LAMBDA, "__lambda__"):
        raise UnsafeKerasFile(f"the code of a Lambda layer {_named(config)}".strip())
    is_private = name in _PRIVATE and module in (None, *_PRIVATE[name])
    if not is_private and not _is_keras_module(name, module):
        raise UnsafeKerasFile(f"the class {name!r:.60}{_from_module(module)}{_unknown()}")
    if isinstance(config.get("vocabulary"), str):
        raise UnsafeKerasFile(f"a layer that reads the file {config['vocabulary']!r:.60}")
    if name in _OPS and not _is_pure(config.get("function")):
        raise UnsafeKerasFile(
            f"a call of TensorFlow's {config.get('function')!r:.60}, which does more than compute"
        )
    if name in _MEMBER_LAYERS and config.get("attr_name") not in _TENSOR_MEMBERS:
        raise UnsafeKerasFile(f"{name} of {config.get('attr_name')!r:.60}")
    if name == _CLASS_METHOD and (
        config.get("cls_symbol") != "RaggedTensor"
        or not str(config.get("method_name")).startswith("from_")
    ):
        method = f"{config.get('cls_symbol')}.{config.get('method_name')}"
        raise UnsafeKerasFile(f"{name} of {method!r:.60}")
    if isinstance(config.get("layers"), list):
        _check_order(config["layers"])


def _check_function(
    name: Any, module: Optional[str], registered: Any, allowed: Mapping[str, Any]
) -> None:
    if _is_own(name, allowed):
        return
    places = [_public(place) for place in _FUNCTIONS]
    is_known = isinstance(name, str) and any(hasattr(place, name) for place in places)
    if (
        not is_known
        or registered not in (None, name, _FUNCTION)
        or module not in (None, "builtins", *(f"{_MODULE}.{place}" for place in _FUNCTIONS))
    ):
        raise UnsafeKerasFile(f"the function {name!r:.60}{_from_module(module)}{_unknown()}")


def _from_module(module: Optional[str]) -> str:
    return "" if module is None else f" of the module {module!r:.60}"


def _is_own(name: Any, allowed: Mapping[str, Any]) -> bool:
    """Whether a name is allowed by the caller, or registered by Keras, this package or a user."""
    if not isinstance(name, str):
        return False
    value = allowed.get(name, tf.keras.utils.get_custom_objects().get(name))
    module = str(getattr(value, "__module__", ""))
    if module.startswith(_UNPICKLES):
        return False
    return name in allowed or module.startswith("keras.") or is_user_module(module)


def _is_keras_module(name: str, module: Optional[str]) -> bool:
    if module == tf.constant_initializer.__module__:
        # Models such as EfficientNetV2 contain TensorFlow's own initializers.
        return name in {kind.__name__ for kind in _initializers()}
    places = [_public(place) for place in _PLACES] if module is None else [_keras_module(module)]
    kinds = [vars(place).get(name) for place in places if place is not None]
    return any(isinstance(kind, type) and issubclass(kind, _kinds()) for kind in kinds)


def _keras_module(name: str) -> Any:
    if name.startswith((_APPLICATIONS, _KERAS_OPS)):
        # Import the module, as some modules with these names define layers.
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    is_public = name == _MODULE or name.startswith(f"{_MODULE}.")
    return _public(name[len(_MODULE) + 1 :]) if is_public else None


def _public(path: str) -> Any:
    """Returns a public module or class of Keras by path, such as "layers"; None if unknown."""
    value: Any = tf.keras
    for name in filter(None, path.split(".")):
        value = getattr(value, name, None)
    return value if hasattr(value, "__dict__") else None


def _is_pure(symbol: Any) -> bool:
    if not isinstance(symbol, str):
        return False
    name = symbol[len("compat.v1.") :] if symbol.startswith("compat.v1.") else symbol
    space, dot, function = name.rpartition(".")
    in_space = bool(dot) and space in _OP_SPACES and not function.startswith("_")
    return name in _OP_NAMES or (in_space and name not in _NO_OPS)


def _named(config: Mapping[str, Any]) -> str:
    return repr(config["name"])[:60] if "name" in config else ""


def _check_order(layers: Sequence[Any]) -> None:
    """Checks that no layers wait for each other's outputs, as Keras would loop forever."""
    waiting: dict[str, list[list[tuple[str, int]]]] = {}
    ready: dict[str, int] = {}
    for layer in layers:
        if not isinstance(layer, Mapping):
            continue
        name, nodes = layer.get("name"), layer.get("inbound_nodes")
        if isinstance(name, str) and isinstance(nodes, list):
            waiting[name] = [_node_inputs(node) for node in nodes]
            # An input layer has an output before any call, and a nested model may have one.
            ready[name] = int(not nodes or layer.get("class_name") in _MODELS)
    is_new = True
    while is_new:
        is_new = False
        for name, nodes in waiting.items():
            while nodes and all(
                k < ready.get(layer, 0) for layer, k in nodes[0] if layer in waiting
            ):
                nodes.pop(0)
                ready[name] += 1
                is_new = True
    stuck = [name for name, nodes in waiting.items() if nodes]
    if stuck:
        raise UnsafeKerasFile(f"layers that wait for one another's outputs ({stuck[0]!r:.60})")


def _node_inputs(node: Any) -> list[tuple[str, int]]:
    """Returns the outputs that a layer's call takes, each as (layer, index of its call)."""
    inputs, values = [], [node]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, list):
            if len(value) > 2 and isinstance(value[0], str) and type(value[1]) is int:
                inputs.append((value[0], value[1]))
            values += value
    return inputs


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    for member in members:
        name = member.filename
        is_asset = name.startswith(_ASSETS) and ".." not in Path(name).parts
        if name not in _MEMBERS and not is_asset:
            raise UnsafeKerasFile(f"{name!r:.60}, which is neither {_CONFIG} nor {_WEIGHTS}")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise UnsafeKerasFile(f"the link {name!r:.60}")
        if names.count(name) > 1:
            raise UnsafeKerasFile(f"{name!r:.60} twice")
    _check_size(sum(member.file_size for member in members), size)


def _checked_weights(file: h5py.File, size: int) -> int:
    """Checks that an HDF5 file has only numbers; returns their size in bytes."""
    total, groups, seen = 0, [file], {_address(file)}
    while groups:
        group = groups.pop()
        for name in group:
            where = f"{group.name.rstrip('/')}/{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise UnsafeKerasFile(f"the link {where!r:.100} instead of numbers")
            item = group[name]
            if _address(item) in seen:
                continue
            seen.add(_address(item))
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif isinstance(item, h5py.Dataset):
                if item.is_virtual or item.external:
                    # Delete the reference: if the exception's trace keeps a virtual dataset, Python
                    # crashes at exit.
                    del item
                    raise UnsafeKerasFile(f"{where!r:.100}, whose numbers are in another file")
                if item.dtype.hasobject:
                    raise UnsafeKerasFile(f"{where!r:.100}, which is not numbers")
                total += math.prod(item.shape or ()) * item.dtype.itemsize
                _check_size(total, size)
    return total


def _address(item: Union[h5py.Group, h5py.Dataset]) -> int:
    address: int = h5py.h5o.get_info(item.id).addr
    return address


def _check_size(unpacked: int, size: int) -> None:
    if unpacked > max(_FREE_BYTES, _MAX_RATIO * size):
        raise UnsafeKerasFile(f"{size} bytes that unpack to {unpacked}")


def _at_most(num_bytes: int) -> Callable[..., tf.Variable]:
    """Returns a variable creator that raises an error if variables far exceed the weights' size."""
    # Allow more than the weights' size, as some variables are created twice, and others, such as
    # counters, are not weights.
    left = max(_FREE_BYTES, 4 * num_bytes)

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        nonlocal left
        shape, dtype = arguments.get("shape"), arguments.get("dtype")
        values = arguments.get("initial_value")
        if shape is None and callable(values):
            # Keras 3 passes no shape here, so trace the function that returns the values, without
            # computing them.
            with tf.Graph().as_default():
                shape = values().shape
        if shape is not None and dtype is not None:
            count = tf.TensorShape(shape).num_elements()
            left -= (count or 0) * tf.as_dtype(dtype).size
            if left < 0:
                raise UnsafeKerasFile(
                    f"layers that need more weights than its {num_bytes} bytes (one {list(shape)})"
                )
        return next_creator(**arguments)

    return create
