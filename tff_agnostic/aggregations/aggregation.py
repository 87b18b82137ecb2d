"""The aggregation interface, whose defaults are the plain sum; bounds and limits of values.

An aggregation encodes a client's output before the sum over the cohort, and decodes the sum on the
server. It consists of pure functions, and of its own state on the server. `PlainSum` leaves values
unchanged; `secure_sum.SecureSum` turns them into bounded integers.
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
    """A declared property of the values that reach the server.

    Every declared property is verified on compiled steps before anything runs; see
    `computations.verification`.
    """

    SECURE_SUMS = "secure sums"
    SECRET_NOISE = "noise whose key no client learns"


class ClientFacts(NamedTuple):
    """Facts about a client that an aggregation receives in addition to the client's output.

    Attributes:
        seed: The client's seed in this round, int64 scalar.
        examples_cut: Number of the client's examples beyond the limit, int64 scalar.
        place: `Place` of the client in the cohort; () unless `numbers_clients`.
    """

    seed: tf.Tensor
    examples_cut: tf.Tensor
    place: Any = ()


@dataclasses.dataclass(frozen=True)
class ClientLimits(Options):
    """Limits of one client, from which algorithms derive the bounds of its output.

    Attributes:
        examples: Maximum number of a client's examples; if a client has more, the first ones are
            used.
        loss: Upper bound of an example's loss; the lower bound of sums of losses is 0.
        update: Bound of a coordinate of a client's model delta.
        weight: Bound of a client's weight. If not given, it is 10 if weights are fractions of a
            round, and the bound of examples if weights count examples.
    """

    examples: Annotated[int, Within(least=1)] = 1000
    loss: Annotated[float, Within(above=0)] = 20.0
    update: Annotated[float, Within(above=0)] = 1.0
    weight: Optional[Annotated[float, Within(above=0)]] = None

    def beta(self, default: float) -> float:
        """Returns the bound of a client's weight; `default` if not set."""
        return default if self.weight is None else self.weight


@dataclasses.dataclass(frozen=True)
class LimitedOptions(Options):
    """Options of aggregations with limits per client.

    Attributes:
        limit: Limits of each client.
    """

    limit: ClientLimits = ClientLimits()


@dataclasses.dataclass(frozen=True)
class Bound:
    """Range of one value of a client's output: [0, limit], or [-limit, limit] if signed.

    If the server divides one value by another, both have the same `ratio` name. If one value
    exceeds its bound, all of the client's values of this ratio are scaled down together, so that
    the client counts less but its ratio is preserved. Clipping each value separately would change
    the ratio.

    Attributes:
        limit: Maximum absolute value.
        signed: Whether negative values are allowed; only for real values.
        integer: Whether the values are int64 without quantisation.
        ratio: Name shared by the values that are scaled together; None for an independent value.
        entrywise: Whether each entry has its own scaling factor, as in vectors with an entry per
            domain; otherwise all entries of all values of the ratio share one factor.
        denominator: Whether this value is the denominator of its ratio. If its private sum is below
            the noise, the other values of the ratio count as absent.
        exclusive_group: Name shared by mutually exclusive values: for each client at most one of
            them is nonzero. None for other values.
        public_sum: Sum over a round, if it is known in advance. A private aggregation uses it
            instead of the clients' values, which are not sent. None if unknown.
        max_norm: Maximum l2 norm of all entries together, to which private sums clip; None for
            `limit`.
        contributing: Expected fraction of a round's clients that contribute to the public sum.
    """

    limit: float
    signed: bool = False
    integer: bool = False
    ratio: Optional[str] = None
    entrywise: bool = False
    denominator: bool = False
    exclusive_group: Optional[str] = None
    public_sum: Optional[float] = None
    max_norm: Optional[float] = None
    contributing: float = 1.0

    @property
    def norm(self) -> float:
        """Maximum l2 norm of all entries together."""
        return float(self.limit if self.max_norm is None else self.max_norm)


class FederatedSums(Protocol):
    """Sums over clients in a federated computation; `tff_process.TffSums` implements them.

    An aggregation calls the sums that it needs. Arguments are placed at the clients, sums at the
    server.
    """

    def plain(self, values: Any) -> Any:
        """Returns the sum of unmodified values."""

    def secure(self, values: Any, bit_widths: Any) -> Any:
        """Returns the secure sum of integers in [0, 2^bits)."""

    def secure_modular(self, values: Any, moduli: Any) -> Any:
        """Returns the secure sum of integers, each modulo its given modulus."""

    def joined(self, values: Any) -> Any:
        """Returns a structure of placed values as one placed value."""

    def spec(self, values: Any) -> Any:
        """Returns the tensor specs of one client's value."""


_Sum = TypeVar("_Sum", bound="Aggregation")


class Aggregation:
    """Sums named tuples of tensors over a cohort; bounds have the structure of the values.

    The defaults are a plain sum, without state or secrets. Equal aggregations behave equally, so
    work with them is traced once.

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
        """Limits of one client's values, from which bounds derive."""
        return ClientLimits()

    @property
    def cuts_clients(self) -> bool:
        """Whether at most `limits.examples` examples of a client are used."""
        return False

    @property
    def encodes(self) -> bool:
        """Whether clients send encoded instead of unmodified outputs."""
        return type(self).encode is not Aggregation.encode

    @property
    def numbers_clients(self) -> bool:
        """Whether simulated clients receive their `Place` in the cohort, to draw separate noise."""
        return False

    @property
    def min_clients(self) -> int:
        """Minimum number of clients of a sum that the server may see."""
        return 0

    def for_steps(self: _Sum, bounds: Sequence[Any]) -> tuple[_Sum, ...]:
        """Returns the aggregation of each communication step of a round.

        Args:
            bounds: Bounds of the client output in each step.
        """
        return (self,) * len(bounds)

    def on_clients(self) -> Aggregation:
        """Returns the aggregation without the server's secrets, for clients."""
        return self

    def exact(self: _Sum) -> _Sum:
        """Returns the aggregation, but with real values summed in float64 instead of float32."""
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
        """Returns the maximum difference between a value within its bound and its encoded value."""
        del bound
        return 0.0

    def client_params(self, state: Any) -> Any:
        """On the server: returns the part of the state that is broadcast, such as clip norms."""
        return state

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """On a client: returns the summand for the client's output."""
        del params, bounds, client
        return output

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """In a federated computation: returns the sum of `encoded`, placed at the clients."""
        del bounds
        return sums.plain(encoded)

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """On the server: returns the next state, the sum of the outputs, and a report."""
        del bounds
        return state, summed, OrderedDict()

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Returns descriptions of the values that `decode` reports.

        Args:
            bounds: Bounds of a client's output.
            prefix: Prefix of the names, which distinguishes communication steps.
        """
        del bounds, prefix
        return OrderedDict()


@dataclasses.dataclass(frozen=True)
class PlainSum(Aggregation):
    """The sum of unmodified values.

    Attributes:
        limits: Limits from which algorithms derive bounds. Plain sums do not enforce them.
    """

    limits: ClientLimits = ClientLimits()
    name: str = "plain"


def require_enough_clients(aggregation: Aggregation, num_clients: int) -> None:
    """Raises a `UserError` if a sum over so few clients could reveal single clients."""
    if 0 < num_clients < aggregation.min_clients:
        raise UserError(
            f"{aggregation.name} sums: expected at least {aggregation.min_clients} clients in a "
            f"sum, found {num_clients}: use more clients, or lower secure_min_clients"
        )
