"""Training clients divided anew: some train, and the others are evaluated."""

import dataclasses

import numpy as np

from tff_agnostic.data.clients import SelectedClients
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.stored import SplitOptions
from tff_agnostic.tasks.task import TEST_SPLIT, Task

# Keeps this draw apart from others that use the run's seed.
_STREAM = 12


def divided(task: Task, name: str, options: SplitOptions, seed: int) -> Task:
    """Returns a task in which a share of the training clients trains, and the others are tested on.

    Args:
        task: The task, loaded.
        name: Its name.
        options: Its options.
        seed: Of the run; each has a division of its own.

    Raises:
        UserError: If nobody would be left to train or to test on, or another split was asked for.
    """
    share = options.train_share
    if share is None:
        return task
    flag = f"--{name}_train_share"
    if options.test_split != TEST_SPLIT:
        raise UserError(
            f"--{name}_test_split has no effect with {flag}: then training clients are tested on"
        )
    ids = np.array(task.train.client_ids)
    number = round(share * len(ids))
    if not 1 <= number < len(ids):
        raise UserError(
            f"{flag}: expected a share that leaves clients to train and others to test on, found "
            f"{share:g}, {number} of {len(ids)} training clients"
        )
    drawn = np.random.default_rng([seed, _STREAM]).permutation(ids).tolist()
    train, test = (SelectedClients(task.train, part) for part in (drawn[:number], drawn[number:]))
    return dataclasses.replace(task, train=train, test=test)
