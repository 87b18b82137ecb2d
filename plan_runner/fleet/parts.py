"""What the playing process is asked for, and the names of the files that go in and come out."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from plan_runner import export as exports

PLAN = exports.PLAN
# What the plan is: to ABOUT_FILE.
ABOUT, ABOUT_FILE = "about", "about.json"
# The state of an evaluation of a training's state: STATE and TRAINED to STATE.
EVALUATED, TRAINED = "evaluated", "trained.ckpt"
# The server's first half: STATE to CLIENT_CHECKPOINT.
BEGIN = "begin"
# A client: CLIENT_CHECKPOINT, and EXAMPLES or files of its own, to VALUES or UPDATE.
CLIENT = "client"
# Whether a client's examples are what the plan reads: EXAMPLES or files of its own.
READ = "read"
# Whether an update of another is what the plan sums: UPDATE.
CHECK = "check"
# Plain sums: updates by their number to SUMS.
SUM = "sum"
# The server's second half: STATE and SUMS to STATE and TOLD.
END = "end"
STATE, CLIENT_CHECKPOINT, EXAMPLES = "state.ckpt", "client.ckpt", "examples"
VALUES, UPDATE, SUMS, TOLD = "values.npz", "update.ckpt", "sums", "told.json"


@dataclasses.dataclass(frozen=True)
class SecureValue:
    """A tensor of integers that goes into secure sums only.

    Attributes:
        bound: Every value of a client is below it.
        modulus: Of sums over as many clients as the plan has room for.
    """

    name: str
    shape: tuple[int, ...]
    bound: int
    modulus: int


@dataclasses.dataclass(frozen=True)
class About:
    """What a party has to know of a plan.

    Attributes:
        kind: What a round does: training, or evaluation.
        profile: How clients are summed.
        secure: What they send into secure sums.
        max_clients: The most clients of a round; None if there is no limit.
        min_clients: The fewest clients of a round.
        has_noise: Whether its sums are private.
    """

    kind: str
    profile: str
    secure: tuple[SecureValue, ...]
    max_clients: Optional[int]
    min_clients: int
    has_noise: bool

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> About:
        """Returns the one of which this is `dataclasses.asdict`, by way of JSON."""
        secure = tuple(
            SecureValue(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in value["secure"]
        )
        return cls(**{**value, "secure": secure})
