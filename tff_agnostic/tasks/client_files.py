"""Your own features as one .npz file a client, and a logistic regression on them.

`--data_dir` holds `dataset.json` ({"domains": [NAME, ...], "num_features": ..., "num_classes": ...})
and the folders `train/` and `test/`. Each .npz file in them is one client with the arrays
"x" float32 [n, features], "y" int32 [n] and "domain_id" int32 [n], an index into the domains.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tff_agnostic.data.npz_clients import NpzClients
from tff_agnostic.errors import UserError
from tff_agnostic.models.logistic import logistic_regression
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec


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
    return Task(
        domain_names=domain_names,
        train=NpzClients(context.data_dir / "train", spec, len(domain_names)),
        test=NpzClients(context.data_dir / "test", spec, len(domain_names)),
        model=model,
    )


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: expected a JSON description of the clients ({e})") from e
    expected = {"domains": list, "num_features": int, "num_classes": int}
    for key, kind in expected.items():
        value = description.get(key) if isinstance(description, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) or not value:
            raise UserError(
                f"{path}: expected {key!r} to be a non-empty {kind.__name__}, found {value!r}"
            )
    names = description["domains"]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise UserError(f"{path}: expected different names in 'domains', found {names}")
    return description


TASK = TaskSpec(
    summary="your own features, one .npz file a client (in --data_dir); logistic regression",
    options=ClientFilesOptions,
    load=load,
    defaults={},
    reads_data_dir=True,
)
