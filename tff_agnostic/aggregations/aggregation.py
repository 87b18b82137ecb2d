"""The aggregation interface, whose defaults are the plain sum's; bounds and limits.

An aggregation changes a client's output before the sum over the cohort, and the sum after it. It is
pure functions around one sum, and a state of its own on the server. `PlainSum` leaves values as
they are; `secure_sum.SecureSum` turns them into bounded integers.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Optional, Protocol, TypeVar

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.report_fields import ReportFields


class SecurityProperty(enum.Enum):
    """A declared property of what reaches the server.

    Each is verified on compiled communication steps before anything runs; see
    `computations.verification`.
    """

    SECURE_SUMS = "secure sums"
    SECRET_NOISE = "noise whose key no client learns"


class ClientFacts(NamedTuple):
    """Facts about a client that an aggregation gets in addition to the client's output.

    Attributes:
        seed: The client's seed in this round, int64 scalar.
        examples_cut: Number of its examples that were left out, int64 scalar.
        place: Its `Place` in the cohort; () unless the aggregation numbers clients.
    """

    seed: tf.Tensor
    examples_cut: tf.Tensor
    place: Any = ()


@dataclasses.dataclass(frozen=True)
class ClientLimits(Options):
    """Limits of one client, from which algorithms derive the bounds of its output.

    Attributes:
        examples: Bound of a client's examples; a client with more uses the first ones.
        loss: Bound of an example's loss; sums of losses are bounded from below by 0, too.
        update: Bound of a coordinate of a client's model delta.
        weight: Bound of a client's weight; if not given, the algorithm's: 10 where weights are
            shares of a round, the bound of examples where they count examples.
    """

    examples: Annotated[int, Within(least=1)] = 1000
    loss: Annotated[float, Within(above=0)] = 20.0
    update: Annotated[float, Within(above=0)] = 1.0
    weight: Optional[Annotated[float, Within(above=0)]] = None

    def beta(self, default: float) -> float:
        """Returns the bound of a client's weight, or `default` if it has none."""
        return default if self.weight is None else self.weight


@dataclasses.dataclass(frozen=True)
class LimitedOptions(Options):
    """Options of sums of clients with limits.

    Attributes:
        limit: The limits.
    """

    limit: ClientLimits = ClientLimits()


@dataclasses.dataclass(frozen=True)
class Bound:
    """Range of one value of a client's output: [0, limit], or [-limit, limit] if signed.

    Values that the server divides by each other name the same `ratio`. Where one of them exceeds
    its bound, all of the client's values of the ratio are scaled down together, so that the client
    counts less and its ratio stays. If each value were cut alone, the ratio would change.

    Attributes:
        limit: Largest absolute value.
        signed: Whether negative values are allowed; real values only.
        integer: Whether the values are int64, which need no quantisation.
        ratio: Name of the values that are scaled together; None for a value that stands alone.
        entrywise: Whether entry i is scaled with entry i of the others, as vectors with an entry
            per domain are; otherwise all entries of all of them have one factor.
        denominator: Whether the other values of its ratio are divided by it. Where a private sum of
            it is below its noise, they count as absent.
        one_of: Name of alternatives, of which a client has at most one nonzero; None if the value
            is no alternative.
        public_sum: The sum over a round, where it is known without the clients' values. A private
            aggregation uses it in place of the sum, and clients do not send the value.
        max_norm: Largest l2 norm of all entries together, to which private sums clip; None if it is
            `limit`.
        contributing: With a public sum the share of a round's clients that are expected to add to
            it.
    """

    limit: float
    signed: bool = False
    integer: bool = False
    ratio: Optional[str] = None
    entrywise: bool = False
    denominator: bool = False
    one_of: Optional[str] = None
    public_sum: Optional[float] = None
    max_norm: Optional[float] = None
    contributing: float = 1.0

    @property
    def norm(self) -> float:
        """Largest l2 norm of all entries together."""
        return float(self.limit if self.max_norm is None else self.max_norm)


class FederatedSums(Protocol):
    """The sums over clients that a federated computation has; TFF's are in `tff_process`.

    An aggregation says which of them it needs. Values are placed at the clients, sums at the
    server.
    """

    def plain(self, values: Any) -> Any:
        """Returns the sum of values as they are."""

    def secure(self, values: Any, bit_widths: Any) -> Any:
        """Returns the secure sum of integers in [0, 2^bits)."""

    def secure_modular(self, values: Any, moduli: Any) -> Any:
        """Returns the secure sum of integers, modulo what is given for each."""

    def joined(self, values: Any) -> Any:
        """Returns a structure of placed values as one value, placed where they are."""

    def spec(self, values: Any) -> Any:
        """Returns the tensor specs of what one client has."""


_Sum = TypeVar("_Sum", bound="Aggregation")


class Aggregation:
    """Sums named tuples of tensors over a cohort; the structure of bounds is that of the values.

    The defaults are those of a sum of the values as they are, without a state or a secret. Equal
    aggregations do the same: what was traced for one serves the other.

    Attributes:
        name: Name in the registry.
    """

    name: str

    @property
    def guarantees(self) -> frozenset[SecurityProperty]:
        """The declared properties, each verified before anything runs."""
        return frozenset()

    @property
    def limits(self) -> ClientLimits:
        """Limits of what one client may send, from which bounds are made."""
        return ClientLimits()

    @property
    def cuts_clients(self) -> bool:
        """Whether no more than `limits.examples` examples of a client are used."""
        return False

    @property
    def encodes(self) -> bool:
        """Whether clients send something else than their output as it is."""
        return type(self).encode is not Aggregation.encode

    @property
    def numbers_clients(self) -> bool:
        """Whether simulated clients get their place in the cohort, as a part of their seeds."""
        return False

    @property
    def min_clients(self) -> int:
        """The fewest clients of a sum that is looked at, if it holds any."""
        return 0

    def of_exchanges(self: _Sum, bounds: Sequence[Any]) -> tuple[_Sum, ...]:
        """Returns the aggregation of each communication step of a round.

        Args:
            bounds: Of the client output in each step.
        """
        return (self,) * len(bounds)

    def on_clients(self) -> Aggregation:
        """Returns the aggregation as clients have it: without secrets of the server."""
        return self

    def exact(self: _Sum) -> _Sum:
        """Returns the aggregation without a rounding of real sums to float32."""
        return self

    def initialize(self, bounds: Any) -> Any:
        """Returns the state before the first sum."""
        del bounds
        return ()

    def secrets(self, state: Any) -> list[Any]:
        """Returns the parts of the state that no client may learn."""
        del state
        return []

    def rounding(self, bound: Bound) -> float:
        """Returns by how much a value within its bound may change between client and sum."""
        del bound
        return 0.0

    def client_params(self, state: Any) -> Any:
        """On the server: returns the part of the state that is broadcast, such as clip norms."""
        return state

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """On a client: returns the summand that is made of the client's output."""
        del params, bounds, client
        return output

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """In a federated computation: sums `encoded`, placed at clients, on the server."""
        del bounds
        return sums.plain(encoded)

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """On the server: returns the next state, the sum of the outputs, and a report."""
        del bounds
        return state, summed, OrderedDict()

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Describes the report of `decode`.

        Args:
            bounds: Of a client's output.
            prefix: First part of the names, by which communication steps differ.
        """
        del bounds, prefix
        return OrderedDict()


@dataclasses.dataclass(frozen=True)
class PlainSum(Aggregation):
    """The sum of the values as they are.

    Attributes:
        limits: Not enforced; algorithms make bounds of them, which shows that each value has one.
        name: Name of the aggregation.
    """

    limits: ClientLimits = ClientLimits()
    name: str = "plain"


def require_enough_clients(aggregation: Aggregation, num_clients: int) -> None:
    """Refuses a sum over so few clients that it would reveal them."""
    if 0 < num_clients < aggregation.min_clients:
        raise UserError(
            f"{aggregation.name} sums: expected at least {aggregation.min_clients} clients in a "
            f"sum, found {num_clients}: use more clients, or lower secure_min_clients"
        )
