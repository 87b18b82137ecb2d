"""What is summed, over whom, and by which thresholds: every party has it from its own plan."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fleet.secure_aggregation import masks
from fleet.secure_aggregation.errors import SumError
from fleet.secure_aggregation.primitives import DIGEST_BYTES, KEY_BYTES, digest

# The sum over two clients tells each of them the other's values.
FEWEST_CLIENTS = 3
# Numbers of clients are sent in 16 bits.
MOST_CLIENTS = (1 << 16) - 1
# Of a name that is not known, so much is shown.
_SHOWN_DIGITS = 16
_LONGEST_NAME = 64


@dataclasses.dataclass(frozen=True)
class SummedTensor:
    """A tensor of integers of which the sum over the clients is computed.

    Attributes:
        name: Its name in the plan.
        shape: Its shape.
        bound: Every value of a client is from 0 to `bound` - 1.
        modulus: The sum is known modulo this number; from `bound` to 2^64.
    """

    name: str
    shape: tuple[int, ...]
    bound: int
    modulus: int

    def __post_init__(self) -> None:
        if not 1 <= self.bound <= self.modulus <= masks.LARGEST_MODULUS:
            raise SumError(
                f"{self.name}: expected 1 <= bound <= modulus <= 2^64, found a bound of "
                f"{self.bound} and a modulus of {self.modulus}"
            )
        if any(size < 0 for size in self.shape):
            raise SumError(f"{self.name}: expected a shape of sizes, found {self.shape}")

    @property
    def size(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)

    @property
    def packed_bytes(self) -> int:
        """The bytes that a client sends of it."""
        return masks.packed_size(self.size, self.modulus)

    def values(self, value: np.ndarray, where: str) -> np.ndarray:
        """Returns a client's values as a flat copy in uint64, after a check of each."""
        place = f"{where}: {self.name}"
        if value.dtype.kind not in "iu" or value.shape != self.shape:
            raise SumError(
                f"{place}: expected integers of the shape {self.shape}, found {value.dtype.name} "
                f"of the shape {value.shape}"
            )
        if value.size:
            smallest, largest = int(value.min()), int(value.max())
            if smallest < 0 or largest >= self.bound:
                wrong = smallest if smallest < 0 else largest
                raise SumError(
                    f"{place}: expected values from 0 to {self.bound - 1}, found {wrong}"
                )
        return value.astype(np.uint64).ravel()


@dataclasses.dataclass(frozen=True)
class SumPlan:
    """What all parties of a sum have to agree on; each makes it from its own copy of the plan.

    Attributes:
        plan: SHA-256 of the plan that the sums are of, such as its manifest's.
        tensors: What is summed.
        max_clients: The most clients of a sum; moduli have room for so many.
        min_clients: The fewest clients whose sum may be opened, at least 3.
        checks_survivors: Whether clients sign the list of whose values are summed, and open nothing
            before they have seen enough of the others' signatures: the consistency check of the
            paper's figure 4, against a server that shows clients different lists.
    """

    plan: bytes
    tensors: tuple[SummedTensor, ...]
    max_clients: int
    min_clients: int = FEWEST_CLIENTS
    checks_survivors: bool = True

    def __post_init__(self) -> None:
        if len(self.plan) != DIGEST_BYTES:
            raise SumError(f"plan: expected a SHA-256 of 32 bytes, found {len(self.plan)}")
        if not FEWEST_CLIENTS <= self.min_clients <= self.max_clients <= MOST_CLIENTS:
            raise SumError(
                f"secure aggregation: expected {FEWEST_CLIENTS} <= min_clients <= max_clients <= "
                f"{MOST_CLIENTS}, found {self.min_clients} and {self.max_clients}"
            )
        names = [tensor.name for tensor in self.tensors]
        if not names or len(set(names)) != len(names):
            raise SumError(f"secure aggregation: expected tensors of distinct names, found {names}")

    def digest(self) -> bytes:
        """Returns SHA-256 of all of it: parties with another one do not take part together."""
        fields = {**dataclasses.asdict(self), "plan": self.plan.hex()}
        return digest("sum plan", json.dumps(fields, sort_keys=True).encode())

    def threshold(self, clients: int) -> int:
        """Returns t: how many of so many clients open a secret, and how many have to stay.

        It is above a half, so that clients who answer once cannot open both secrets of one; and
        above two thirds where a server may lie and hold less than a third of the clients.
        """
        return (2 * clients // 3 if self.checks_survivors else clients // 2) + 1

    @property
    def packed_bytes(self) -> int:
        """The bytes of all tensors that a client sends."""
        return sum(tensor.packed_bytes for tensor in self.tensors)

    def check_values(self, values: Mapping[str, np.ndarray], where: str) -> list[np.ndarray]:
        """Returns a client's values, flat, in the order of the tensors."""
        names = [tensor.name for tensor in self.tensors]
        if set(values) != set(names):
            raise SumError(f"{where}: expected the tensors {names}, found {sorted(values)}")
        return [tensor.values(np.asarray(values[tensor.name]), where) for tensor in self.tensors]

    def apply_masks(self, totals: Sequence[np.ndarray], key: bytes, sign: int) -> None:
        """Adds the masks of a key to all tensors, in place, or subtracts them."""
        for number, (tensor, total) in enumerate(zip(self.tensors, totals)):
            masks.apply_mask(total, tensor.modulus, key, number, sign)

    def pack(self, totals: Sequence[np.ndarray]) -> bytes:
        """Returns the vectors of all tensors as `packed_bytes` bytes."""
        return b"".join(
            masks.pack(total, tensor.modulus) for tensor, total in zip(self.tensors, totals)
        )

    def unpack(self, packed: bytes) -> list[np.ndarray] | None:
        """Returns the vectors of what `pack` returned, None if a number is beyond its modulus."""
        vectors, start = [], 0
        for tensor in self.tensors:
            part = memoryview(packed)[start : start + tensor.packed_bytes]
            vector = masks.unpack(part, tensor.size, tensor.modulus)
            if vector is None:
                return None
            vectors.append(vector)
            start += tensor.packed_bytes
        return vectors


@dataclasses.dataclass(frozen=True)
class Identities:
    """The clients of a fleet: the names that its operator gave them, by Ed25519 public key."""

    names: Mapping[bytes, str]

    def __post_init__(self) -> None:
        for key, name in self.names.items():
            if len(key) != KEY_BYTES:
                raise SumError(f"identity {name!r}: expected a key of 32 bytes, found {len(key)}")
            if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
                raise SumError(
                    f"identity {key.hex()}: expected a printable name of 1 to {_LONGEST_NAME} "
                    f"characters, found {name[:_LONGEST_NAME]!r}"
                )
        if len(set(self.names.values())) != len(self.names):
            raise SumError("identities: expected a name of its own for each, found one twice")

    def __contains__(self, identity: bytes) -> bool:
        return identity in self.names

    def name(self, identity: bytes) -> str:
        """Returns how a client is called in messages to people."""
        return self.names.get(identity) or f"of the unknown key {identity.hex()[:_SHOWN_DIGITS]}"
