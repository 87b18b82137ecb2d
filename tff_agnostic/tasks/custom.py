"""Your own model on your own data: a Python file with `build_model`, and a client store.

`--model` names the file, see `models.user_model.build_user_model`; `--data` the store, as
`import_data` makes it of tables, images or texts. Of texts the task is to predict the next word.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.data.clients import checked_examples
from tff_agnostic.data.store import Store
from tff_agnostic.data.store_clients import StoreClients
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.models.sentences import sentence_spec
from tff_agnostic.models.user_file import UserFile
from tff_agnostic.models.user_model import ModelData, build_user_model
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import (
    Corpus,
    LanguageOptions,
    check_sizes,
    known_words,
    next_word_task,
)
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    data_fingerprint,
    domains_by_name,
    labels_of,
    open_store,
    stored_domains,
)
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use, option_flag

_TEXT_ONLY = ("vocabulary_size", "vocabulary", "sequence_length", "long_sentences")


@dataclasses.dataclass(frozen=True)
class CustomOptions(LanguageOptions):
    """Options of the task."""

    model: Optional[str] = setting(
        None, "Python file with a function build_model.", flag="model", is_path=True
    )


def load(options: CustomOptions, context: TaskContext) -> Task:
    """Returns the task.

    Raises:
        UserError: If the store or the model's file is missing or does not fit.
    """
    if options.model is None:
        raise UserError("--model: expected a Python file with a function build_model, found none")
    assert context.data is not None
    store = open_store(context.data, "custom", {DOMAIN: Feature("string")})
    file = UserFile(Path(options.model))
    load_kind = _text_task if store.description.kind == TEXT else _features_task
    task = load_kind(store, options, lambda data: build_user_model(file, data, context.seed))
    # After the model was built: the file may import where it is needed.
    digests = file.digests()
    of_model = {"model": digests["file"]}
    if "imports" in digests:
        of_model["files that the model imports"] = digests["imports"]
    fingerprint = {**of_model, **_classes(store), **task.fingerprint}
    return dataclasses.replace(task, fingerprint=fingerprint)


def _text_task(store: Store, options: CustomOptions, build: Any) -> Task:
    check_sizes("custom", options)
    spec = sentence_spec(options.sequence_length)
    names = stored_domains(store)

    def model(vocabulary_size: int) -> Model:
        built: Model = build(
            ModelData(spec["x"], spec["y"], names, vocabulary_size=vocabulary_size)
        )
        return built

    words = known_words(options, "custom", store.vocabulary)
    corpus = Corpus(store, words, names, DOMAIN)
    return next_word_task("custom", corpus, options, model)


def _features_task(store: Store, options: CustomOptions, build: Any) -> Task:
    for field in dataclasses.fields(LanguageOptions):
        if field.name in _TEXT_ONLY and getattr(options, field.name) != field.default:
            raise UserError(
                f"--{option_flag('custom', field)} has no effect: {store.path} holds no text"
            )
    names = stored_domains(store)
    features = {
        name: feature
        for name, feature in store.description.features.items()
        if feature.dtype != "string" and name != LABEL
    }
    label = store.description.features.get(LABEL)
    if label is None or not features:
        raise UserError(
            f"{store.path}: --task=custom needs texts ({TOKENS}), or a {LABEL} and numbers, found "
            f"{', '.join(store.description.features)}"
        )
    num_classes = store.description.num_classes
    x_spec: Any = {name: _spec(feature) for name, feature in sorted(features.items())}
    is_single = len(x_spec) == 1
    if is_single:
        (x_spec,) = x_spec.values()
    data = ModelData(x_spec, _spec(label), names, num_classes=num_classes)
    model: Model = build(data)
    domains_of = domains_by_name(names, store.path)
    client_spec = model.client_data_spec()

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{store.path}: client {client_id}"
        x: Any = {name: _column(columns, name, where) for name in sorted(features)}
        if num_classes is None:
            y = _column(columns, LABEL, where)
        else:
            y = labels_of(columns, num_classes, where)
        examples = {
            "x": next(iter(x.values())) if is_single else x,
            "y": y,
            "domain_id": domains_of(client_id, columns),
        }
        return checked_examples(examples, client_spec, len(names), where)

    def clients(split: str) -> StoreClients:
        wanted = {**features, LABEL: label, DOMAIN: Feature("string")}
        return StoreClients(store, split, wanted, to_examples, names)

    return Task(
        domain_names=names,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=model,
        fingerprint=data_fingerprint(store),
    )


def _spec(feature: Feature) -> tf.TensorSpec:
    # Whole numbers are int32 to models, as to TensorFlow's embeddings and losses.
    dtype = tf.int32 if feature.dtype == "int64" else tf.float32
    return tf.TensorSpec([None, *feature.shape], dtype)


def _column(columns: Mapping[str, np.ndarray], name: str, where: str) -> np.ndarray:
    values = columns[name]
    if values.dtype != np.int64:
        return values
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        row = int(np.argwhere(narrow != values)[0][0])
        raise UserError(
            f"{where}: {name}: expected whole numbers of 32 bits, found a larger one in row {row}"
        )
    return narrow


def _classes(store: Store) -> dict[str, str]:
    names = store.description.class_names
    return {} if names is None else {"classes": ", ".join(names)}


TASK = TaskSpec(
    summary="your Keras model (--model, a Python file) on your client store (--data)",
    options=CustomOptions,
    load=load,
    defaults={"batch_normalizer": "batch"},
    data=Use.REQUIRED,
)
