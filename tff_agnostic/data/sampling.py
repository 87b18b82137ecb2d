"""Which clients take part in a round."""

from collections.abc import Sequence

import numpy as np

from tff_agnostic.errors import UserError

# Keeps the draws apart from those of tasks, which use the run's seed too.
_STREAM = 7


def sample_cohort(
    client_ids: Sequence[str], clients_per_round: int, seed: int, round_num: int
) -> list[str]:
    """Returns C_t, drawn uniformly without replacement.

    The draw is a function of its arguments, so a resumed run sees the cohorts it would have seen.

    Raises:
        UserError: If there are fewer clients than asked for.
    """
    check_cohort_size(len(client_ids), clients_per_round)
    rng = np.random.default_rng([seed, _STREAM, round_num])
    chosen = rng.choice(len(client_ids), size=clients_per_round, replace=False)
    return [client_ids[i] for i in chosen]


def check_cohort_size(num_clients: int, clients_per_round: int) -> None:
    """Raises a `UserError` unless a round of that many clients can be drawn."""
    if not 1 <= clients_per_round <= num_clients:
        raise UserError(
            f"--clients_per_round: expected 1 to {num_clients}, the number of training clients, "
            f"found {clients_per_round}"
        )
