"""Whether a grid can be trained in the time that there is."""

import math

from tff_agnostic.errors import UserError

_SECONDS = 3600.0


def check_max_hours(hours: float) -> None:
    """Raises a `UserError` if --max_hours is no time."""
    if not 0 < hours < math.inf:
        raise UserError(f"--max_hours: expected a finite positive number, found {hours:g}")


def check_time(hours: float, seconds: float, trials_left: int) -> None:
    """Refuses trials that will take longer than there is time.

    Args:
        hours: How long they may take.
        seconds: How long the first of them took.
        trials_left: How many more there are.

    Raises:
        UserError: If they would take longer; it says how long.
    """
    needed = seconds * (1 + trials_left) / _SECONDS
    if needed > hours:
        # Rounded up: what is asked for will do.
        enough = math.ceil(100 * needed) / 100
        raise UserError(
            f"--max_hours: expected about {enough:.2f} for {1 + trials_left} trials, the first of "
            f"which took {seconds:.1f} s, found {hours:g}; fewer --grid_points or --trials take "
            "less, and --resume goes on after what was trained"
        )
