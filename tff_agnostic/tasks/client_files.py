"""Your own features as one .npz file a client, and a logistic regression on them.

`--data_dir` holds `dataset.json`, an object with "domains" (a list of names), "num_features" and
"num_classes", and the folders `train/` and `test/`. Each .npz file in them is one client with the
arrays "x" float32 [n, features], "y" int32 [n] and "domain_id" int32 [n] (index of the domain).
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tff_agnostic.data.npz_clients import NpzClients
from tff_agnostic.errors import UserError
from tff_agnostic.models.logistic import logistic_regression
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use


@dataclasses.dataclass(frozen=True)
class ClientFilesOptions:
    """This task has no options: the files say everything."""


def load(options: ClientFilesOptions, context: TaskContext) -> Task:
    """Returns the task; clients are read and checked when a round needs them.

    Raises:
        UserError: If the description or the folders are missing or malformed.
    """
    del options
    assert context.data_dir is not None
    description = _read_description(context.data_dir / "dataset.json")
    domain_names = tuple(description["domains"])
    model = logistic_regression(description["num_features"], description["num_classes"])
    spec = model.client_data_spec()

    def clients(folder: str) -> NpzClients:
        assert context.data_dir is not None
        path = context.data_dir / folder
        return NpzClients(path, spec, len(domain_names), description["num_classes"])

    return Task(
        domain_names=domain_names, train=clients("train"), test=clients("test"), model=model
    )


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: expected a JSON description of the clients ({e})") from e
    if not isinstance(description, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(description).__name__}")
    for key, smallest in (("num_features", 1), ("num_classes", 2)):
        value = description.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise UserError(f"{path}: expected {key} to be at least {smallest}, found {value!r}")
    names = description.get("domains")
    if (
        not (isinstance(names, list) and names)
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise UserError(f"{path}: expected a list of different names in domains, found {names!r}")
    return description


TASK = TaskSpec(
    summary="your own features, one .npz file a client (in --data_dir); logistic regression",
    options=ClientFilesOptions,
    load=load,
    defaults={},
    data_dir=Use.REQUIRED,
)
