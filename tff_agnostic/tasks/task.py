"""The definition of a task."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.base.options import alternatives, hints
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.inputs import ModelInputs
from tff_agnostic.later import matplotlib
from tff_agnostic.models.model import Model

# In a task's fingerprint: the examples themselves. Weights may be evaluated on others.
DATA = "data"
# There, too: the code of a user's model, the file and what it imports.
MODEL_CODE = ("model", "files that the model imports")
# Whose clients are evaluated, unless a user tunes on others.
TEST_SPLIT = "test"
HELDOUT_SPLIT = "heldout"
# The clients for the tail of the losses that training lowered.
TRAINING_SPLIT = "training"

# Help of an option that several tasks have, with other choices in each.
NETWORK_HELP = (
    "Layers of the model: lstm or cifg; of text_classifier mean or lstm; of emnist cnn or linear."
)

# Draws a task's own figure from the rows of metrics.csv and the weights after the last round.
DrawFigure = Callable[["Task", Mapping[str, Any]], "matplotlib.figure.Figure"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A federated learning problem with domains, loaded.

    Attributes:
        domain_names: Names of the p domains; their order gives the domain ids.
        train: Training clients.
        test: Clients for evaluation.
        model: The model to train.
        tracked_weights: Names and (weight, flat index) positions of single trainable weights whose
            course over the rounds belongs into metrics.csv.
        figures: Figures of this task, by file name without suffix, drawn from the columns of
            metrics.csv.
        fingerprint: What trained weights depend on in addition to flags, such as the vocabulary, by
            name; a run is resumed and evaluated only where these are the same.
        test_split: Which split `test` is: "test", "heldout" while tuning, or "training".
        remarks: Returns what the task leaves out of its data.
        class_names: Names of the classes that labels count, if they have any.
        words: The vocabulary of texts; word k has the id k + 1.
        inputs: What the model's inputs are, where that is known.
    """

    domain_names: tuple[str, ...]
    train: ClientDataset
    test: ClientDataset
    model: Model
    tracked_weights: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, DrawFigure] = dataclasses.field(default_factory=dict)
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
        """Returns the task with its training clients in the place of those that are evaluated."""
        return dataclasses.replace(self, test=self.train, test_split=TRAINING_SPLIT)


@dataclasses.dataclass(frozen=True)
class TaskContext:
    """Context that every task gets in addition to its own options.

    Attributes:
        seed: Seed of the run, for splits and generated data.
        data_dir: Folder with the task's files, for tasks that read some.
        data: The client store, for tasks that read one.
    """

    seed: int
    data_dir: Optional[Path] = None
    data: Optional[Path] = None


class Use(enum.Enum):
    """Whether a task reads something that a flag names."""

    NO = enum.auto()
    OPTIONAL = enum.auto()
    REQUIRED = enum.auto()


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A registry entry: how to load a task, and its defaults.

    Attributes:
        summary: One line for help texts.
        options: A frozen dataclass of settings; each field is a flag, shared by all tasks with it.
        load: (options, context) -> task.
        defaults: Settings of runs by flag, where the task's defaults differ from those of their
            classes.
        option_defaults: Options of the task, likewise.
        algorithm_defaults: Settings of runs for single algorithms, by name.
        data_dir: Whether the task reads the folder --data_dir.
        data: Whether the task reads the client store --data.
        heldout: Options with which it is evaluated on examples that are neither trained on nor part
            of the test; empty if none do. See `heldout_options`.
    """

    summary: str
    options: type
    load: Callable[[Any, TaskContext], Task]
    defaults: Mapping[str, Any]
    algorithm_defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    data_dir: Use = Use.NO
    data: Use = Use.NO
    heldout: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    option_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the task's options, which are their flags."""
        return tuple(field.name for field in dataclasses.fields(self.options))

    def make_options(self, values: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
        """Returns the task's options.

        Args:
            values: Options that differ from the task's defaults; a text may stand for a path.
        """
        given = {**self.option_defaults, **values}
        for name, hint in hints(self.options).items():
            if isinstance(given.get(name), str) and Path in alternatives(hint):
                given[name] = Path(given[name])
        return self.options(**given)
