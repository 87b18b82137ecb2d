"""What happens to a client's answer before the sum over the cohort, and to the sum after it.

An aggregation is pure functions around one sum, and a state of its own that lives on the server.
`PlainSum` leaves values as they are; `secure_sum.SecureSum` turns them into bounded integers.
"""

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.errors import UserError
from tff_agnostic.quantities import Quantities


class Guarantee(enum.Enum):
    """What an aggregation promises of what reaches the server.

    Each has a check of compiled exchanges, without which nothing runs; see `guarantees`.
    """

    SECURE_SUMS = "secure sums"
    SECRET_NOISE = "noise whose key no client learns"


class ClientFacts(NamedTuple):
    """What an aggregation is told of a client beside its answer.

    Attributes:
        seed: The client's seed in this round, int64 scalar.
        examples_cut: How many of its examples were left out, int64 scalar.
        place: Its `Place` in the cohort; () unless the aggregation numbers clients.
    """

    seed: tf.Tensor
    examples_cut: tf.Tensor
    place: Any = ()


class Aggregation(Protocol):
    """Sums named tuples of tensors over a cohort; the structure of bounds is that of the values.

    Equal aggregations do the same: what was traced for one serves the other.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What is promised, and checked before anything runs."""

    @property
    def limits(self) -> ClientLimits:
        """Limits of what one client may send, from which bounds are made."""

    @property
    def cuts_clients(self) -> bool:
        """Whether no more than `limits.max_examples` examples of a client are used."""

    @property
    def numbers_clients(self) -> bool:
        """Whether simulated clients are told their place in the cohort, to draw apart by it."""

    @property
    def min_clients(self) -> int:
        """How many clients a sum that is looked at must hold at least, if it holds any."""

    def of_exchanges(self, bounds: Sequence[Any]) -> "tuple[Aggregation, ...]":
        """Returns the aggregation of each exchange of a round.

        Args:
            bounds: Of the answer of each exchange.
        """

    def on_clients(self) -> "Aggregation":
        """Returns it as clients have it: without what only the server may know."""

    def exact(self) -> "Aggregation":
        """Returns it without a rounding of real sums to float32 after they are made."""

    def initialize(self, bounds: Any) -> Any:
        """Returns the state before the first sum."""

    def secrets(self, state: Any) -> list[Any]:
        """Returns what of the state no client may learn."""

    def rounding(self, bound: Bound) -> float:
        """Returns by how much a value within its bound may change between client and sum."""

    def client_params(self, state: Any) -> Any:
        """On the server: returns what clients are sent of the state, such as a norm to clip to."""

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """On a client: returns what is summed, from the client's answer."""

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """In a federated computation: sums `encoded`, placed at clients, on the server."""

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """On the server: returns the next state, the sum of the answers, and a report."""

    def quantities(self, bounds: Any, prefix: str = "") -> Quantities:
        """Describes the report of `decode`.

        Args:
            bounds: Of a client's answer.
            prefix: First part of the quantities' names, which keeps exchanges apart.
        """


_Sum = TypeVar("_Sum", bound=Aggregation)


class StatelessSum:
    """What aggregations share that remember nothing from round to round, and have no secret."""

    numbers_clients = False

    def of_exchanges(self: _Sum, bounds: Sequence[Any]) -> tuple[_Sum, ...]:
        """Returns itself for each."""
        return (self,) * len(bounds)

    def on_clients(self: _Sum) -> _Sum:
        """Returns itself."""
        return self

    def exact(self: _Sum) -> _Sum:
        """Returns itself: what clients send is what is summed."""
        return self

    def initialize(self, bounds: Any) -> Any:
        """Returns no state."""
        del bounds
        return ()

    def secrets(self, state: Any) -> list[Any]:
        """Returns nothing."""
        del state
        return []

    def client_params(self, state: Any) -> Any:
        """Returns nothing."""
        return state


@dataclasses.dataclass(frozen=True)
class PlainSum(StatelessSum):
    """The sum of the values as they are.

    Attributes:
        limits: Not enforced; bounds are made of them to see that an algorithm states them all.
        name: Name of the aggregation.
    """

    limits: ClientLimits = ClientLimits()
    name: str = "plain"

    guarantees = frozenset[Guarantee]()
    cuts_clients = False
    min_clients = 0

    def rounding(self, bound: Bound) -> float:
        """Returns 0: values stay as they are."""
        del bound
        return 0.0

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Returns `output`."""
        del params, bounds, client
        return output

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """Returns `tff.federated_sum`."""
        del bounds
        return tff.federated_sum(encoded)

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """Returns `summed`, and no report."""
        del bounds
        return state, summed, OrderedDict()

    def quantities(self, bounds: Any, prefix: str = "") -> Quantities:
        """Describes no report."""
        del bounds, prefix
        return OrderedDict()


def require_enough_clients(aggregation: Aggregation, num_clients: int) -> None:
    """Refuses a sum that says too much of its clients, as that of a single one says all.

    Raises:
        UserError: If there are some clients, but fewer than the aggregation asks for.
    """
    if 0 < num_clients < aggregation.min_clients:
        raise UserError(
            f"{aggregation.name} sums: expected at least {aggregation.min_clients} clients in a "
            f"sum, found {num_clients}: use more clients, or lower --secure_min_clients"
        )
