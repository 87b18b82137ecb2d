"""Errors for Keras files that would run code or read files if plain Keras loaded them."""

import base64
import importlib.metadata
import io
import json
import os
import pickle
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any, Callable

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden, keras_zoo
from tff_agnostic.base.errors import UserError
from tff_agnostic.models.keras_platform import KERAS_3, keras_platform
from tff_agnostic.program.keras_files import read_named_keras
from tff_agnostic.saving.keras import load_keras

layers = tf.keras.layers
_IS_KERAS_3 = keras_platform().release == KERAS_3
_KERNEL = "model_weights/last/last/kernel" + ("" if _IS_KERAS_3 else ":0")
Config = dict[str, Any]


class _Touches:
    """An object that writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def _touching(mark: Path) -> Any:
    text = f"lambda x: [__import__('pathlib').Path({str(mark)!r}).mkdir(exist_ok=True), x][1]"
    return eval(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """Returns a folder with the same model as .h5 and as .keras."""
    folder = tmp_path_factory.mktemp("plain")
    inputs = tf.keras.Input([4], name="in")
    model = tf.keras.Model(inputs, layers.Dense(3, name="last")(inputs))
    for suffix in ("h5", "keras"):
        model.save(folder / f"plain.{suffix}")
    return folder


def _saved(path: Path, layer: Any) -> None:
    inputs = tf.keras.Input([4])
    tf.keras.Model(inputs, layers.Dense(3)(layer(inputs))).save(path)


def _h5(plain: Path, path: Path, change: Callable[[Config], Any]) -> None:
    shutil.copy(plain / "plain.h5", path)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        change(config["config"])
        file.attrs["model_config"] = json.dumps(config)


def _with_layer(
    name: str, config: Config, inputs: Any = (), **more: Any
) -> Callable[[Config], Any]:
    layer = {"class_name": name, "name": "own", "inbound_nodes": inputs, **more}
    layer["config"] = {"name": "own", "trainable": True, "dtype": "float32", **config}
    return lambda model: model["layers"].append(layer)


def _keras(
    plain: Path,
    path: Path,
    change: Callable[[Config], Any] = lambda config: None,
    without: str = "",
    **members: bytes,
) -> None:
    with zipfile.ZipFile(plain / "plain.keras") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config["config"])
                content = json.dumps(config).encode()
            if name != without:
                target.writestr(name, content)
        for name, content in members.items():
            target.writestr(name, content, zipfile.ZIP_DEFLATED)


def _lambda(plain: Path, path: Path, mark: Path) -> None:
    _saved(path, layers.Lambda(_touching(mark)))


def _lambda_in_a_model(plain: Path, path: Path, mark: Path) -> None:
    _saved(path, tf.keras.Sequential([layers.Lambda(_touching(mark), input_shape=[4])]))


def _lambda_in_a_wrapper(plain: Path, path: Path, mark: Path) -> None:
    wrapped = layers.TimeDistributed(layers.Lambda(_touching(mark)))
    stack = [layers.Reshape([1, 4], input_shape=[4]), wrapped, layers.Flatten()]
    tf.keras.Sequential([*stack, layers.Dense(3)]).save(path)


def _h5_called_keras(plain: Path, path: Path, mark: Path) -> None:
    _saved(path.with_suffix(".h5"), layers.Lambda(_touching(mark)))
    path.with_suffix(".h5").rename(path)


def _op(symbol: str) -> Callable[[Path, Path, Path], None]:
    def make(plain: Path, path: Path, mark: Path) -> None:
        inputs = [["_CONSTANT_VALUE", -1, str(mark), {}]]
        _h5(plain, path, _with_layer("TFOpLambda", {"function": symbol}, inputs))

    return make


def _printing(plain: Path, path: Path, mark: Path) -> None:
    inputs = [["_CONSTANT_VALUE", -1, "text", {"output_stream": f"file://{mark}"}]]
    _h5(plain, path, _with_layer("TFOpLambda", {"function": "print"}, inputs))


def _pickling_layer(plain: Path, path: Path, mark: Path) -> None:
    # Importing TFF imports TensorFlow Probability, which registers the layer.
    pytest.importorskip("tensorflow_probability", reason="TensorFlow Probability is with TFF only")

    code = base64.b64encode(pickle.dumps(_Touches(mark))).decode()
    _h5(plain, path, _with_layer("DistributionLambda", {"make_distribution_fn": code}))


def _pickled_weights(plain: Path, path: Path, mark: Path) -> None:
    content = io.BytesIO()
    np.savez(content, __root__=np.array([_Touches(mark)], object))
    members = {"model.weights.npz": content.getvalue()}
    _keras(plain, path, without="model.weights.h5", **members)


def _module_to_import(plain: Path, path: Path, mark: Path) -> None:
    inputs = [["_CONSTANT_VALUE", -1, str(mark), {}]]
    function = {"class_name": "function", "module": "os", "config": "mkdir"}
    config = {
        "function": {**function, "registered_name": "mkdir"},
        "function_type": "function",
        "output_shape": None,
        "output_shape_type": "raw",
        "arguments": {},
    }
    more = {"module": "keras.layers", "registered_name": None}
    _keras(plain, path, _with_layer("Lambda", config, [inputs], **more))


_CODE: dict[str, tuple[Callable[[Path, Path, Path], None], str, str]] = {
    "a Lambda layer": (_lambda, ".h5", "found the code of a Lambda layer"),
    "a Lambda layer in .keras": (_lambda, ".keras", "found the code of a Lambda layer"),
    "in a model in a model": (_lambda_in_a_model, ".h5", "found the code of a Lambda layer"),
    "in a wrapper": (_lambda_in_a_wrapper, ".h5", "found the code of a Lambda layer"),
    "HDF5 that is called .keras": (_h5_called_keras, ".keras", "found the code of a Lambda layer"),
    "a module to import": (_module_to_import, ".keras", "found the code of a Lambda layer"),
    "an op on files": (_op("io.gfile.makedirs"), ".h5", "call of TensorFlow's 'io.gfile.makedirs'"),
    "an op that prints to a file": (_printing, ".h5", "call of TensorFlow's 'print'"),
    "a registered layer that unpickles": (_pickling_layer, ".h5", "the class 'DistributionLambda'"),
    "pickled weights": (_pickled_weights, ".keras", "found 'model.weights.npz'"),
}


@pytest.mark.parametrize("case", list(_CODE))
def test_code_in_keras_files_raises_without_running(plain, tmp_path, case):
    make, suffix, message = _CODE[case]
    mark = tmp_path / "mark"
    make(plain, tmp_path / f"model{suffix}", mark)
    # The Lambda layer has already run once, when the model was saved.
    shutil.rmtree(mark, ignore_errors=True)
    assert message in _refused(tmp_path / f"model{suffix}")
    assert not mark.exists()


def _refused(path: Path) -> str:
    message = golden.refusal(read_named_keras, path, {}, "--initial_model")
    assert message.startswith(f"--initial_model: {path}: expected a Keras model of Keras' own ")
    assert "(--trust loads it" in message
    return message


def _later_config(model: Config) -> None:
    # Keras 2 cannot read the dtypes that Keras 3 writes for layers.
    for layer in model["layers"]:
        layer["config"]["dtype"] = {"module": "keras", "class_name": "LaterPolicy", "config": {}}


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_error_about_newer_keras_file_has_both_versions(plain, tmp_path, suffix, trust):
    path, version = tmp_path / f"model{suffix}", "31.10.0"
    if suffix == ".h5":
        _h5(plain, path, _later_config)
        with h5py.File(path, "r+") as file:
            file.attrs["keras_version"] = version
    else:
        metadata = json.dumps({"keras_version": version}).encode()
        _keras(plain, path, _later_config, without="metadata.json", **{"metadata.json": metadata})
    message = golden.refusal(read_named_keras, path, {}, "--initial_model", trust)
    release = importlib.metadata.version("keras")
    assert message.startswith(f"--initial_model: {path}: expected a file that Keras {release} ")
    assert f"by Keras {version}: run with TFF_AGNOSTIC_PLATFORM=today" in message


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_trusted_keras_file_runs_its_code(tmp_path, suffix):
    path, mark = tmp_path / f"model{suffix}", tmp_path / "mark"
    _saved(path, layers.Lambda(_touching(mark)))
    mark.rmdir()
    read_named_keras(path, {}, "--initial_model", trust=True)
    assert mark.exists()


_LAYERS: dict[str, tuple[str, Config, str]] = {
    "a cell with a marshalled function": ("ResidualWrapper", {}, "the class 'ResidualWrapper'"),
    "a node of any op": ("TensorFlowOpLayer", {}, "the class 'TensorFlowOpLayer'"),
    "a library": ("TFOpLambda", {"function": "load_op_library"}, "'load_op_library'"),
    "a download": ("TFOpLambda", {"function": "keras.utils.get_file"}, "'keras.utils.get_file'"),
    "an op that reads a file": (
        "TFOpLambda",
        {"function": "nn.fixed_unigram_candidate_sampler"},
        "'nn.fixed_unigram_candidate_sampler'",
    ),
    "Python's own attributes": ("InstanceProperty", {"attr_name": "__class__"}, "'__class__'"),
    "a method of any class": (
        "ClassMethod",
        {"cls_symbol": "io.gfile.GFile", "method_name": "__init__"},
        "'io.gfile.GFile.__init__'",
    ),
    "a vocabulary that is a file": (
        "StringLookup",
        {"vocabulary": "/etc/passwd"},
        "a layer that reads the file '/etc/passwd'",
    ),
    "a function of any module": (
        "TextVectorization",
        {"standardize": {"class_name": "function", "module": "os", "config": "system"}},
        "the function 'system' of the module 'os'",
    ),
}


@pytest.mark.parametrize("case", list(_LAYERS))
def test_layers_that_access_files_raise(plain, tmp_path, case):
    name, config, message = _LAYERS[case]
    _h5(plain, tmp_path / "model.h5", _with_layer(name, config))
    assert message in _refused(tmp_path / "model.h5")


def test_circular_layers_raise(plain, tmp_path):
    """Without this package's check, Keras would not terminate."""

    def wait(config: Config) -> None:
        for name, other in (("p", "q"), ("q", "p")):
            layer = {"class_name": "ReLU", "config": {"name": name}, "name": name}
            config["layers"].append({**layer, "inbound_nodes": [[[other, 0, 0, {}]]]})

    _h5(plain, tmp_path / "model.h5", wait)
    assert "layers that wait for one another's outputs ('p')" in _refused(tmp_path / "model.h5")


def test_layers_with_missing_weights_raise(plain, tmp_path):
    def widen(config: Config) -> None:
        config["layers"][1]["config"]["units"] = 2**33

    _h5(plain, tmp_path / "model.h5", widen)
    assert "layers that need more weights than its 60 bytes" in _refused(tmp_path / "model.h5")


def _elsewhere(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "secret.h5", "w") as secret:
        secret["s"] = np.full([4, 3], 42, np.float32)
    file[_KERNEL] = h5py.ExternalLink(str(folder / "secret.h5"), "s")


def _in_any_file(file: h5py.File, folder: Path) -> None:
    (folder / "secret").write_bytes(np.full([4, 3], 42, np.float32).tobytes())
    parts = [(str(folder / "secret"), 0, 48)]
    file.create_dataset(_KERNEL, shape=(4, 3), dtype="f4", external=parts)


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "s", shape=(4, 3))
    file.create_virtual_dataset(_KERNEL, layout)


def _claimed(file: h5py.File, folder: Path) -> None:
    # HDF5 returns zeros for chunks that the file lacks, even if the claimed shape is huge.
    file.create_dataset(_KERNEL, shape=(2**20, 2**20), dtype="f4", chunks=(64, 64))


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (_elsewhere, f"the link '/{_KERNEL}' instead of numbers"),
        (_in_any_file, f"'/{_KERNEL}', whose numbers are in another file"),
        (_virtual, f"'/{_KERNEL}', whose numbers are in another file"),
        (_claimed, "bytes that unpack to 4398046511"),
    ],
)
def test_weights_outside_the_file_raise(plain, tmp_path, replace, message):
    path = tmp_path / "model.h5"
    shutil.copy(plain / "plain.h5", path)
    with h5py.File(path, "r+") as file:
        del file[_KERNEL]
        replace(file, tmp_path)
    assert message in _refused(path)


@pytest.mark.nightly
def test_hostile_archive_members_raise(plain, tmp_path):
    path = tmp_path / "model.keras"
    _keras(plain, path, **{"assets/zeros": bytes(1 << 27)})
    assert " bytes that unpack to 1342" in _refused(path)
    _keras(plain, path, **{"assets/../../mark": b""})
    assert "found 'assets/../../mark', which is neither" in _refused(path)
    _keras(plain, path)
    link = zipfile.ZipInfo("assets/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "found the link 'assets/link'" in _refused(path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        _keras(plain, path, **{"config.json": b"{}"})
    assert "found 'config.json' twice" in _refused(path)


def test_deeply_nested_keras_config_raises(plain, tmp_path):
    path = tmp_path / "model.h5"
    _h5(plain, path, lambda config: None)
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = '{"config":' + "[" * 9000 + "]" * 9000 + "}"
    problem = "pop expected" if _IS_KERAS_3 else "recursion"
    with pytest.raises(UserError, match=r"expected a Keras model, cannot load .*" + problem):
        read_named_keras(path, {}, "--initial_model")


def _with_ops() -> tf.keras.Model:
    x = inputs = tf.keras.Input([4])
    x = tf.concat([x[:, :2], tf.abs(x)[:, 2:] * 2 - 1], 1)
    x = tf.reshape(tf.where(x > 0, tf.nn.gelu(x), x), [tf.shape(x)[0], 4])
    x = layers.Dense(3, activation=tf.nn.relu6, kernel_initializer=tf.constant_initializer(1))(x)
    return tf.keras.Model(inputs, tf.reduce_mean(x, 1, keepdims=True))


@pytest.mark.nightly_cases(
    "stacked_cells-.h5",
    "stacked_cells-.keras",
    "own_recurrent_layers-.h5",
    "own_recurrent_layers-.keras",
)
@pytest.mark.slow_cases(but=["_with_ops-.h5"])
@pytest.mark.parametrize("suffix", [".h5", ".keras"])
@pytest.mark.parametrize(
    "build",
    [
        _with_ops,
        keras_zoo.convolutional,
        keras_zoo.stacked_cells,
        keras_zoo.attention,
        keras_zoo.own_recurrent_layers,
    ],
)
def test_models_of_keras_layers_load(tmp_path, build, suffix):
    if _IS_KERAS_3 and build is _with_ops:
        pytest.skip("Keras 3 takes no functions of TensorFlow on symbolic inputs")
    with_masks = (keras_zoo.attention, keras_zoo.own_recurrent_layers)
    if _IS_KERAS_3 and suffix == ".h5" and build in with_masks:
        pytest.skip("Keras 3 cannot load the .h5 file that it saves of it")
    model = build()
    model.save(tmp_path / f"model{suffix}")
    loaded = load_keras(tmp_path / f"model{suffix}", {})
    for a, b in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(a, b)
    assert len(loaded.weights) == len(model.weights)


@pytest.mark.slow
def test_layers_given_by_the_caller_load(tmp_path):
    class Doubled(layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return 2 * x

    for name in ("model.h5", "model.keras"):
        _saved(tmp_path / name, Doubled())
        assert "the class 'Doubled'" in _refused(tmp_path / name)
        assert load_keras(tmp_path / name, {"Doubled": Doubled}).layers[1].__class__ is Doubled
