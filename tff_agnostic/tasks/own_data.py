"""The task `custom`: a user's Keras model on a user's client store.

`--model` names a Python file with `build_model`, see `models.user_model.build_user_model`. `--data`
names a store, as `import_data` makes it of tables, arrays, images or texts. With labelled texts the
task is to predict the label, with others the next word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Callable, Optional

import numpy as np

from tff_agnostic.base.options import OneOf
from tff_agnostic.data.clients import checked_examples
from tff_agnostic.data.store import Store, StoreClients
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.keras_platform import name_layers_afresh
from tff_agnostic.models.metrics import sentence_spec
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.user_model import ModelData, build_user_model
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.language import Corpus, SentenceOptions, known_words, next_word_task
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainOptions,
    StoredDomains,
    chosen_domains,
    data_fingerprint,
    open_store,
)
from tff_agnostic.tasks.stored_inputs import CATEGORY_ENCODINGS, StoredInputs, StoredLabels
from tff_agnostic.tasks.task import MODEL_CODE, Task, TaskContext, TaskSpec, Use
from tff_agnostic.tasks.text_tasks import labelled_text_task, text_spec
from tff_agnostic.user_code import UserFile

_OF_SENTENCES = ("long_sentences",)
_OF_TEXTS = ("sequence_length", *_OF_SENTENCES, "predict")
# What is learnt from texts; the entries are for help texts.
PREDICTIONS: Registry[str] = Registry(
    "thing to predict", {"label": "the text's label", "next_word": "each next word"}
)

Build = Callable[[ModelData], Model]


@dataclasses.dataclass(frozen=True)
class CustomOptions(DomainOptions, SentenceOptions):
    """Options of the task.

    Attributes:
        model: Python file with a function build_model.
        predict: Target of texts: label or next_word. [label, if they have one]
        categories: Form of categorical columns: one_hot entries of a vector, or ids, an input for
            each column.
    """

    model: Optional[Path] = None
    predict: Optional[Annotated[str, OneOf(PREDICTIONS)]] = None
    categories: Annotated[str, OneOf(CATEGORY_ENCODINGS)] = "one_hot"


def load_custom(options: CustomOptions, context: TaskContext) -> Task:
    """Returns the task."""
    if options.model is None:
        raise UserError("--model: expected a Python file with a function build_model, found none")
    assert context.data is not None
    store = open_store(context.data, {DOMAIN: Feature("string")})
    # Before the file is run: it may make layers in passing.
    name_layers_afresh()
    file = UserFile(Path(options.model))
    load_kind = _text_task if store.description.kind == TEXT else _features_task
    task = load_kind(store, options, lambda data: build_user_model(file, data, context.seed))
    # After the model was built: the file may import where it is needed.
    digests = file.digests()
    found = (digests["file"], digests.get("imports"))
    of_model = {name: value for name, value in zip(MODEL_CODE, found) if value is not None}
    return dataclasses.replace(task, fingerprint={**of_model, **task.fingerprint})


def _text_task(store: Store, options: CustomOptions, build: Build) -> Task:
    _refuse(options, ("categories",), f"{store.path} holds texts")
    has_labels = LABEL in store.description.features
    predicted = options.predict or ("label" if has_labels else "next_word")
    words = known_words(options, store.vocabulary)
    domains = _domains(store, options)
    names = domains.names
    corpus = Corpus(store, words, domains)
    if predicted == "label":
        return _labelled_text_task(corpus, options, build)
    spec = sentence_spec(options.sequence_length)
    model = build(ModelData(spec["x"], spec["y"], names, vocabulary_size=len(words)))
    task = next_word_task(corpus, options, model)
    if not has_labels:
        return task
    return dataclasses.replace(
        task, fingerprint={**StoredLabels(store).fingerprint(), **task.fingerprint}
    )


def _labelled_text_task(corpus: Corpus, options: CustomOptions, build: Build) -> Task:
    _refuse(options, _OF_SENTENCES, "labels are of whole texts")
    labels = StoredLabels(corpus.store)
    data = ModelData(
        text_spec(options.sequence_length),
        labels.spec,
        corpus.domains.names,
        num_classes=labels.num_classes,
        vocabulary_size=len(corpus.words),
        label_range=corpus.store.description.label_range,
    )
    return labelled_text_task(
        corpus, labels, options.sequence_length, options.test_split, build(data)
    )


def _features_task(store: Store, options: CustomOptions, build: Build) -> Task:
    _refuse(options, _OF_TEXTS, f"{store.path} holds no text")
    if not store.description.categories or isinstance(options.vocabulary, int):
        _refuse(options, ("vocabulary",), f"{store.path} holds no text")
    if not store.description.categories:
        _refuse(options, ("categories",), f"{store.path} holds no categories")
    domains = _domains(store, options)
    names = domains.names
    if LABEL not in store.description.features:
        raise UserError(
            f"{store.path}: --task=custom needs texts ({TOKENS}), or a {LABEL} and numbers, found "
            f"{', '.join(store.description.features)}"
        )
    labels = StoredLabels(store)
    inputs = StoredInputs(store, options.categories, _known_categories(store, options))
    data = ModelData(
        inputs.spec,
        labels.spec,
        names,
        num_classes=labels.num_classes,
        label_range=store.description.label_range,
        categories=inputs.categories,
        x_names=inputs.names(),
        x_mean=inputs.of_numbers(lambda entry: entry.mean),
        x_deviation=inputs.of_numbers(lambda entry: entry.deviation),
    )
    model = build(data)
    domains_of = domains.of_examples(store)
    client_spec = model.client_data_spec()

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{store.path}: client {client_id}"
        examples = {
            "x": inputs.x_of(columns, where),
            "y": labels.y_of(columns, where),
            "domain_id": domains_of(client_id, columns),
        }
        return checked_examples(examples, client_spec, len(names), where)

    def clients(split: str) -> StoreClients:
        wanted = {**inputs.features, LABEL: labels.feature, **domains.features}
        has_counts = domains.are_the_stores
        return StoreClients(store, split, wanted, to_examples, names, has_counts)

    return Task(
        domain_names=names,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=model,
        fingerprint={
            **labels.fingerprint(),
            **inputs.fingerprint(),
            **data_fingerprint(store),
        },
        class_names=labels.class_names,
        inputs=inputs.described,
    )


def _domains(store: Store, options: CustomOptions) -> StoredDomains:
    splits = (TRAIN_SPLIT, options.test_split)
    return chosen_domains(store, options.domain_feature, splits)


def _known_categories(
    store: Store, options: CustomOptions
) -> Optional[Mapping[str, tuple[str, ...]]]:
    """Returns the categories of the store that --vocabulary names; None if it names none."""
    if isinstance(options.vocabulary, int):
        return None
    path = Path(options.vocabulary)
    if not path.is_file():
        raise UserError(f"--vocabulary: expected a client store, found no file at {path}")
    found = Store(path).description.categories
    for column in store.description.categories:
        if column not in found:
            raise UserError(
                f"--vocabulary: expected a store with the categories of {column}, found "
                f"those of {', '.join(found) or 'no column'} in {path}"
            )
    return found


def _refuse(options: CustomOptions, names: tuple[str, ...], why: str) -> None:
    """Raises a `UserError` if one of these options was given, which has no effect."""
    for field in dataclasses.fields(options):
        if field.name in names and getattr(options, field.name) != field.default:
            raise UserError(f"--{field.name} has no effect: {why}")


CUSTOM = TaskSpec(
    summary="your Keras model (--model, a Python file) on your client store (--data)",
    options=CustomOptions,
    load=load_custom,
    defaults={"client_normalizer": "batch"},
    data=Use.REQUIRED,
)
