"""Whether rounds and evaluations have as many clients as their sums need."""

from tff_agnostic.computations.aggregation import Aggregation
from tff_agnostic.errors import UserError
from tff_agnostic.program.config import RunConfig
from tff_agnostic.tasks.task import Task


def check_clients_of_sums(config: RunConfig, aggregation: Aggregation) -> None:
    """Checks what is known before the task is loaded.

    Raises:
        UserError: If rounds or evaluations have fewer clients than the aggregation sums.
    """
    fewest = aggregation.min_clients
    sizes = {
        "clients_per_round": config.clients_per_round,
        "evaluation_clients": config.evaluation_clients,
    }
    for flag, size in sizes.items():
        if size is not None and size < fewest:
            raise UserError(
                f"--{flag}: expected at least --secure_min_clients={fewest}, found {size}"
            )


def check_test_clients(task: Task, aggregation: Aggregation) -> None:
    """Checks that a task can be evaluated.

    Raises:
        UserError: If it has fewer test clients than the aggregation sums.
    """
    found = len(task.test.client_ids)
    if 0 < found < aggregation.min_clients:
        raise UserError(
            f"--secure_min_clients: expected at most {found}, the number of test clients, found "
            f"{aggregation.min_clients}"
        )
