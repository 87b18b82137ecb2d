"""The class of a text: of tweets, reviews, messages, with whatever domains the store names."""

import dataclasses

from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import LABEL
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model
from tff_agnostic.models.text_classifier import POOLINGS, TextNetwork, text_classifier
from tff_agnostic.settings import setting
from tff_agnostic.tasks.labelled_texts import labelled_text_task
from tff_agnostic.tasks.labels import AnyLabels, ChosenLabels, StoredLabels
from tff_agnostic.tasks.language import TextOptions, check_sizes, stored_corpus
from tff_agnostic.tasks.stored import TRAIN_SPLIT
from tff_agnostic.tasks.stored_domains import DomainOptions
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

_NAME = "text_classifier"


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions(DomainOptions, TextOptions):
    """Options of the task."""

    sequence_length: int = setting(50, "T, words of a text that are read; the rest is cut off.")
    label_feature: str = setting(
        LABEL,
        "Feature of the store that says a text's class: label, or any other text or whole number, "
        "such as type of a store of Stack Exchange.",
    )
    pooling: str = setting(
        TextNetwork.pooling,
        "How words become one vector: mean of their vectors, or lstm, which reads them in order.",
        choices=POOLINGS,
    )
    embedding: int = setting(TextNetwork.embedding, "Size of the word vectors.")
    units: int = setting(TextNetwork.units, f"Units of the LSTM. Only with --{_NAME}_pooling=lstm.")


def load(options: TextClassifierOptions, context: TaskContext) -> Task:
    """Returns the task.

    Raises:
        UserError: If the store does not hold texts with classes, or an option is out of range or
            without effect.
    """
    assert context.data is not None
    check_sizes(_NAME, options)
    if options.pooling != "lstm" and options.units != TextNetwork.units:
        raise UserError(
            f"--{_NAME}_units has no effect with --{_NAME}_pooling={options.pooling}: it needs "
            f"--{_NAME}_pooling=lstm"
        )
    corpus = stored_corpus(_NAME, options, context.data, options.domain_feature)
    labels = _labels(corpus.store, options)
    num_classes = labels.num_classes
    if num_classes is None:
        raise UserError(
            f"{corpus.store.path}: --task={_NAME} needs labels that are classes, found other "
            "numbers (--task=custom has a model for them)"
        )
    network = TextNetwork(options.pooling, options.embedding, options.units)

    def model() -> Model:
        return text_classifier(
            network, num_classes, len(corpus.words), options.sequence_length, context.seed
        )

    return labelled_text_task(
        _NAME, corpus, labels, options.sequence_length, options.test_split, model
    )


def _labels(store: Store, options: TextClassifierOptions) -> AnyLabels:
    if options.label_feature == LABEL:
        return StoredLabels(store)
    splits = (TRAIN_SPLIT, options.test_split)
    return ChosenLabels(store, options.label_feature, splits, f"--{_NAME}_label_feature")


TASK = TaskSpec(
    summary="class of a text, mean of word vectors or LSTM; domains the store's (--data)",
    options=TextClassifierOptions,
    load=load,
    defaults={
        "rounds": 300,
        "clients_per_round": 20,
        "batch_size": 10,
        "client_learning_rate": 0.3,
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_epsilon": 1e-5,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 20,
    },
    data=Use.REQUIRED,
)
