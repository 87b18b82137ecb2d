"""The task `custom`: a user's Keras model on a user's client store.

The option `model` names a Python file with `build_model`; see `models.user_model.build_user_model`.
The store contains tables, arrays, images or texts. By default, the target of labelled texts is the
label, and of other texts the next word.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Optional

import numpy as np

from tff_agnostic.base.options import Verbatim
from tff_agnostic.base.user_code import UserFile
from tff_agnostic.data.clients import checked_examples
from tff_agnostic.data.store import Store, StoreClients, load_store
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, Feature
from tff_agnostic.models.keras_platform import name_layers_afresh
from tff_agnostic.models.metrics import sentence_spec
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.user_model import ModelData, build_user_model
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainOptions,
    chosen_domains,
    data_fingerprint,
    import_remarks,
    open_store,
)
from tff_agnostic.tasks.stored_inputs import StoredInputs, StoredLabels
from tff_agnostic.tasks.task import MODEL_CODE, Task, TaskContext, TaskSpec, Use
from tff_agnostic.tasks.text_tasks import (
    Corpus,
    SentenceOptions,
    known_words,
    labelled_text_task,
    next_word_task,
)

_SENTENCE_OPTIONS = ("long_sentences",)
_TEXT_OPTIONS = ("sequence_length", *_SENTENCE_OPTIONS, "predict")

Build = Callable[[ModelData], Model]


@dataclasses.dataclass(frozen=True)
class CustomOptions(DomainOptions, SentenceOptions):
    """Options of the task.

    Attributes:
        model: Python file with a function build_model.
        predict: Target of texts: label or next_word. [label, if texts have labels]
        categories: Form of categorical columns: one_hot for entries of a vector, or ids for a
            separate input per column.
    """

    model: Optional[Path] = None
    predict: Optional[Literal["label", "next_word"]] = None
    categories: Literal["one_hot", "ids"] = "one_hot"

    def refuse(self, names: tuple[str, ...], reason: str) -> None:
        """Raises OptionError if an option without effect, one of `names`, is not its default."""
        for field in dataclasses.fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                raise self.error(field.name, f"no value, as {reason}")


def load_custom(options: CustomOptions, context: TaskContext) -> Task:
    """Returns the task."""
    if options.model is None:
        expected = "a Python file with a function build_model"
        raise options.error("model", expected, Verbatim("none"))
    assert context.data is not None
    store = open_store(context.data, {DOMAIN: Feature("string")})
    # Reset the names before executing the file, which may create layers.
    name_layers_afresh()
    file = UserFile(options.model)
    load_kind = _text_task if store.description.kind == TEXT else _features_task
    task = load_kind(store, options, lambda data: build_user_model(file, data, context.seed))
    # Compute the digests after the model is built, as the file may import modules meanwhile.
    digests = file.digests()
    code = dict(zip(MODEL_CODE, (digests["file"], digests.get("imports"))))
    code_digests = {name: value for name, value in code.items() if value is not None}
    return dataclasses.replace(task, fingerprint={**code_digests, **task.fingerprint})


def _text_task(store: Store, options: CustomOptions, build: Build) -> Task:
    options.refuse(("categories",), f"{store.path} holds texts")
    words = known_words(options, store.vocabulary)
    corpus = Corpus(store, words, chosen_domains(store, options))
    default = "label" if LABEL in store.description.features else "next_word"
    spec = sentence_spec(options.sequence_length)
    names, size = corpus.domains.names, len(words)
    if (options.predict or default) == "next_word":
        model = build(ModelData(spec["x"], spec["y"], names, vocabulary_size=size))
        return next_word_task(corpus, options, model)
    options.refuse(_SENTENCE_OPTIONS, "labels are of whole texts")
    labels = StoredLabels(store)
    data = ModelData(
        spec["x"],
        labels.spec,
        names,
        num_classes=labels.num_classes,
        vocabulary_size=size,
        label_range=store.description.label_range,
    )
    return labelled_text_task(corpus, labels, options, build(data))


def _features_task(store: Store, options: CustomOptions, build: Build) -> Task:
    options.refuse(_TEXT_OPTIONS, f"{store.path} holds no text")
    if not store.description.categories or isinstance(options.vocabulary, int):
        options.refuse(("vocabulary",), f"{store.path} holds no text")
    if not store.description.categories:
        options.refuse(("categories",), f"{store.path} holds no categories")
    domains = chosen_domains(store, options)
    labels = StoredLabels(store)
    inputs = StoredInputs(store, options.categories, _known_categories(store, options))
    model = build(
        ModelData(
            inputs.spec,
            labels.spec,
            domains.names,
            num_classes=labels.num_classes,
            label_range=store.description.label_range,
            categories=inputs.categories,
            x_names=inputs.names(),
            x_mean=inputs.map_numbers(lambda entry: entry.mean),
            x_deviation=inputs.map_numbers(lambda entry: entry.deviation),
        )
    )
    features = {**inputs.features, LABEL: labels.feature, **domains.features}
    lookup_domains = domains.domain_lookup(store)
    client_spec = model.client_data_spec()

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{store.path}: client {client_id}"
        examples = {
            "x": inputs.build_x(columns, where),
            "y": labels.build_y(columns, where),
            "domain_id": lookup_domains(client_id, columns),
        }
        return checked_examples(examples, client_spec, len(domains.names), where)

    def clients(split: str) -> StoreClients:
        is_counted = domains.are_the_stores
        return StoreClients(store, split, features, to_examples, domains.names, is_counted)

    return Task(
        domain_names=domains.names,
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
        remarks=functools.partial(import_remarks, store),
    )


def _known_categories(
    store: Store, options: CustomOptions
) -> Optional[Mapping[str, tuple[str, ...]]]:
    """Returns the categories in the store that `vocabulary` names; None if it is a number."""
    path = options.vocabulary
    if isinstance(path, int):
        return None
    if not path.exists():
        raise options.error("vocabulary", "a client store", Verbatim(f"nothing at {path}"))
    categories = load_store(path).description.categories
    for column in store.description.categories:
        if column not in categories:
            columns = Verbatim(f"categories of {', '.join(categories) or 'no column'} in {path}")
            raise options.error("vocabulary", f"a store with the categories of {column}", columns)
    return categories


CUSTOM = TaskSpec(CustomOptions, load_custom, data=Use.REQUIRED)
