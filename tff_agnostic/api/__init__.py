"""What the commands do, as functions: import data, train, compare, save a model; and arrays.

Each imports what it needs when it is called.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

if TYPE_CHECKING:
    from tff_agnostic.importing.report import ImportReport
    from tff_agnostic.program.commands.save_model import SavedModels
    from tff_agnostic.program.runs.finished import FinishedRun
    from tff_agnostic.program.studies.compare import ComparedRuns
    from tff_agnostic.program.studies.recommendation import Recommended
    from tff_agnostic.saving.save import SavedFile
    from tff_agnostic.tasks.stored_inputs import Arrays

__all__ = [
    "ComparedRuns",
    "Recommended",
    "FinishedRun",
    "arrays",
    "compare",
    "import_data",
    "recommend",
    "save_model",
    "train",
]

# A path that a caller names.
PathName = Union[str, "os.PathLike[str]"]
_ALGORITHMS = ("fed_avg", "agnostic_fed_avg")
# Where the classes of results are.
_RESULTS = {
    "ComparedRuns": "program.studies.compare",
    "Recommended": "program.studies.recommendation",
    "FinishedRun": "program.runs.finished",
}


def __getattr__(name: str) -> Any:
    if name not in _RESULTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tff_agnostic.{_RESULTS[name]}"), name)


def train(
    task: Optional[str] = None,
    *,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    output_dir: Optional[PathName] = None,
    resume: bool = False,
    show_progress: bool = True,
    train_data: Any = None,
    test_data: Any = None,
    heldout_data: Any = None,
    domain_of: Optional[Callable[[str], Any]] = None,
    **settings: Any,
) -> FinishedRun:
    """Trains one model with one algorithm on one task, as `./run train` does.

    Every flag of that command is an argument: settings of runs and of the algorithm (`rounds=200`,
    `algorithm="fed_avg"`, `lambda_learning_rate=0.1`), options of the task
    (`num_clients=50`, `model="my_model.py"`) and of the runtime (`device="cpu"`).

    Args:
        task: Name of the task; "digits", or that of a run that goes on, if not given.
        data: The client store, for tasks that read one; with `train_data` where it is written.
        data_dir: The folder of raw files, for tasks that read one.
        output_dir: The run's folder, new or empty; a new one in runs/ if not given.
        resume: Go on with the run in `output_dir`, if there is one: what is not given is as it was.
        show_progress: Whether to show a bar on a terminal or in a notebook, or lines elsewhere.
        train_data: Training clients of TFF's instead of a store: a
            `tff.simulation.datasets.ClientData` or a list of `tf.data.Dataset`, as
            `data.tff_clients.to_store` takes them. They are written into `data`, unless they are
            what it has already.
        test_data: The same of the clients that are evaluated.
        heldout_data: The same of those that are evaluated while tuning.
        domain_of: Gives the domain of a client of these by its id, where examples do not have it.
        **settings: The flags.

    Raises:
        Interrupted: If Ctrl-C, or a notebook's stop button, ended it; the run was saved.
    """
    _quiet()
    from tff_agnostic.program.commands.train import TRAIN

    splits = {"train": train_data, "heldout": heldout_data, "test": test_data}
    given = {split: clients for split, clients in splits.items() if clients is not None}
    if given or domain_of is not None:
        _write_clients(data, given, domain_of)
    run: FinishedRun = TRAIN(
        show_progress,
        task=task,
        data=data,
        data_dir=data_dir,
        output_dir=output_dir,
        resume=resume,
        **settings,
    )
    return run


def _write_clients(
    data: Optional[PathName], splits: Mapping[str, Any], domain_of: Optional[Callable[[str], Any]]
) -> None:
    from tff_agnostic.base.errors import UserError
    from tff_agnostic.data import tff_clients

    if "train" not in splits:
        raise UserError(
            "train_data: expected training clients beside test_data, heldout_data or domain_of, "
            "found none"
        )
    if data is None:
        raise UserError(
            "data: expected the path of a store to write the clients of train_data to, found none"
        )
    tff_clients.to_same_store(Path(data), splits, domain_of)


def compare(
    task: str = "digits",
    algorithms: Sequence[str] = _ALGORITHMS,
    *,
    arms: Optional[Mapping[str, Mapping[str, Any]]] = None,
    trials: int = 3,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    output_dir: Optional[PathName] = None,
    resume: bool = False,
    show_progress: bool = True,
    **settings: Any,
) -> ComparedRuns:
    """Compares algorithms on one task over several seeds, as `./run compare` does.

    Every flag of `./run train` is an argument, for all rows alike; see `train`.

    Args:
        algorithms: What to compare: names, or Python files of yours.
        arms: Instead of `algorithms`: the settings of each row, `algorithm` among them, by what it
            is called: `{"mild": {"algorithm": "q_ffl", "q": 0.1}, ...}`.
        trials: Trials of each row; their seeds are `seed`, `seed` + 1, and so on.
        data: The client store, for tasks that read one.
        data_dir: The folder of raw files, for tasks that read one.
        output_dir: The folder of all runs, new or empty; a new one in runs/ if not given.
        resume: Keep complete trials in `output_dir` and go on with the others.
        show_progress: Whether to show a bar on a terminal or in a notebook.
        **settings: The flags.

    Raises:
        Interrupted: As `train` does.
    """
    _quiet()
    from tff_agnostic.program.studies.compare import COMPARE

    compared: ComparedRuns = COMPARE(
        show_progress,
        task=task,
        algorithms=None if tuple(algorithms) == _ALGORITHMS else algorithms,
        arms=arms,
        trials=trials,
        data=data,
        data_dir=data_dir,
        output_dir=output_dir,
        resume=resume,
        **settings,
    )
    return compared


def recommend(
    task: str = "digits",
    *,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    output_dir: Optional[PathName] = None,
    resume: bool = False,
    show_progress: bool = True,
    **settings: Any,
) -> Recommended:
    """Chooses the training for a user's data on validation clients, as `./run recommend` does.

    Every flag of that command is an argument: `objective="regret"`, `average_may_lose="0.5%"`,
    `hours=2`, and those of `./run train`, for all rows alike; see `train`.

    Args:
        data: The client store, for tasks that read one.
        data_dir: The folder of raw files, for tasks that read one.
        output_dir: The folder of all runs, new or empty; a new one in runs/ if not given.
        resume: Go on with what is in `output_dir`, or join the processes at work there.
        show_progress: Whether to show a bar on a terminal or in a notebook, or lines elsewhere.
        **settings: The flags.

    Raises:
        Interrupted: As `train` does.
    """
    _quiet()
    from tff_agnostic.program.studies.recommend import RECOMMEND

    recommended: Recommended = RECOMMEND(
        show_progress,
        task=task,
        data=data,
        data_dir=data_dir,
        output_dir=output_dir,
        resume=resume,
        **settings,
    )
    return recommended


def import_data(show_progress: bool = True, **options: Any) -> ImportReport:
    """Makes a client store of files, as `./run import_data` does.

    Every flag of that command is an argument: `format="csv"`, `input=["examples.csv"]`,
    `output="clients.store"`, `client_column="user"` and so on.

    Args:
        show_progress: Whether to show a bar on a terminal or in a notebook.
        **options: The flags; None is as if it were not given.

    Returns:
        What was read, and what became of it; `text()` is the report that the command prints.
    """
    _quiet()
    from tff_agnostic.program.commands.import_data import IMPORT_DATA

    if isinstance(options.get("input"), (str, Path)):
        options["input"] = [str(options["input"])]
    report: ImportReport = IMPORT_DATA(show_progress, **options)
    return report


def save_model(
    checkpoint: PathName,
    output_dir: PathName,
    formats: Sequence[str] = ("keras",),
    quantize: str = "none",
    *,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    trust: bool = False,
    **task_options: Any,
) -> list[SavedFile]:
    """Saves every model of a checkpoint, and its card, as `./run save_model` does.

    Each file is loaded again, and compared with the run's model on test examples.

    Args:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        output_dir: Folder to write; new or empty.
        formats: What to write: some of "keras", "saved_model" and "tflite".
        quantize: What weights are stored in by a second file for TensorFlow Lite: "int8" or
            "float16".
        data: Where the client store is now, if it has moved.
        data_dir: The same of the folder of raw files.
        trust: Whether Keras files that the run mixes may run code.
        **task_options: Flags of the task that are to be others, as where its files have moved to.

    Returns:
        The files, each with its path, which can be opened, and with what was measured.
    """
    _quiet()
    from tff_agnostic.program.commands.save_model import SAVE_MODEL

    saved: SavedModels = SAVE_MODEL(
        checkpoint=checkpoint,
        output_dir=output_dir,
        format=formats,
        quantize=quantize,
        data=data,
        data_dir=data_dir,
        trust=trust,
        **task_options,
    )
    return [dataclasses.replace(file, path=str(saved.path / file.path)) for file in saved.files]


def arrays(data: PathName, split: str = "train") -> Arrays:
    """Returns the examples of a store as NumPy arrays, all in memory, for other libraries.

    Args:
        data: The client store.
        split: Whose examples: "train", "heldout" or "test".

    Returns:
        `x`, `y`, and the `domains` and `clients` of the examples; `names` of the numbers of x.
    """
    _quiet()
    from tff_agnostic.data.store import load_store
    from tff_agnostic.tasks.stored_inputs import arrays_of

    return arrays_of(load_store(Path(data)), split)


def _quiet() -> None:
    """Keeps TensorFlow's log lines and TFF's warnings away, as `./run` does."""
    # TensorFlow reads it when it is first imported; a caller's own value holds.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.filterwarnings("ignore", "pkg_resources is deprecated as an API", append=True)
