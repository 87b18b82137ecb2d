"""The definition of a task."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.options import Options, alternatives, hints
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.inputs import ModelInputs
from tff_agnostic.data.store_format import TEST
from tff_agnostic.models.model import Model

# Key of the examples' digest in a fingerprint. Comparisons of fingerprints ignore it where a model
# may be used on examples of another data set.
DATA = "data"
# Keys of a user model's code in a fingerprint: the file, and the files that it imports.
MODEL_CODE = ("model", "files that the model imports")
TEST_SPLIT = TEST
# Name of the split with validation examples, for choosing settings.
HELDOUT_SPLIT = "heldout"
# Name of the evaluated split if training clients are evaluated; see `evaluated_in_training`.
TRAINING_SPLIT = "training"


@dataclasses.dataclass(frozen=True)
class Task:
    """A loaded task: clients, domains and a model.

    Attributes:
        domain_names: Names of the p domains; their order gives the domain ids.
        train: Training clients.
        test: Clients for evaluation.
        model: The model to train.
        tracked_weights: Trainable scalars, by name, whose values are part of each round's report.
            Each is (index of the weight array, flat index in the array).
        fingerprint: Digests, by name, of the data that training reads in addition to flags: of the
            vocabulary, for example. A run is resumed and evaluated only if its digests are equal.
        test_split: Name of the split in `test`: "test", "heldout" while tuning, or "training".
        remarks: Returns warnings about skipped data.
        class_names: Names of the classes; None if labels have no names.
        words: The vocabulary of texts; word k has the id k + 1.
        inputs: Description of the model's inputs; None if unknown.
    """

    domain_names: tuple[str, ...]
    train: ClientDataset
    test: ClientDataset
    model: Model
    tracked_weights: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    fingerprint: Mapping[str, str] = dataclasses.field(default_factory=dict)
    remarks: Callable[[], Sequence[Remark]] = tuple
    test_split: str = TEST_SPLIT
    class_names: Optional[tuple[str, ...]] = None
    words: Optional[Sequence[str]] = None
    inputs: Optional[ModelInputs] = None

    @property
    def num_domains(self) -> int:
        """The number of domains p."""
        return len(self.domain_names)

    def evaluated_in_training(self) -> Task:
        """Returns the task with its training clients as test clients."""
        return dataclasses.replace(self, test=self.train, test_split=TRAINING_SPLIT)


@dataclasses.dataclass(frozen=True)
class TaskContext:
    """Arguments of every task in addition to its options.

    Attributes:
        seed: Seed of the run, for splits and generated data.
        data_dir: Folder with the task's files; None for tasks without files.
        data: The client store; None for tasks without a store.
    """

    seed: int
    data_dir: Optional[Path] = None
    data: Optional[Path] = None


class Use(enum.Enum):
    """Whether a task reads a kind of data, such as a client store."""

    NO = enum.auto()
    OPTIONAL = enum.auto()
    REQUIRED = enum.auto()


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A registry entry: how to load a task.

    Attributes:
        options: Class of the task's options.
        load: Called with options and a context; returns the task.
        data_dir: Whether the task reads the folder `TaskContext.data_dir`.
        data: Whether the task reads the client store `TaskContext.data`.
    """

    options: type[Options]
    load: Callable[[Any, TaskContext], Task]
    data_dir: Use = Use.NO
    data: Use = Use.NO

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the task's options, which are their flags."""
        return tuple(field.name for field in dataclasses.fields(self.options))

    def make_options(self, name: str, values: Mapping[str, Any]) -> Any:
        """Returns the task's options.

        Args:
            name: Name of the task, for messages.
            values: Options that differ from the defaults; paths may be strings.
        """
        option_names = Registry(f"option of {name}", hints(self.options))
        options = {}
        for option, value in values.items():
            takes_path = Path in alternatives(option_names[option])
            options[option] = Path(value) if takes_path and isinstance(value, str) else value
        return self.options(**options)
