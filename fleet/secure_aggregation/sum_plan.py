"""Settings of a secure sum (tensors, clients, thresholds), which each party derives by itself."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fleet.secure_aggregation import masks
from fleet.secure_aggregation.errors import SumError
from fleet.secure_aggregation.primitives import DIGEST_BYTES, KEY_BYTES, digest

# From a sum over two clients, each client could compute the other's values.
MIN_CLIENTS = 3
# Messages encode the number of clients in 16 bits.
MAX_CLIENTS = (1 << 16) - 1
# How many hexadecimal digits of an unknown key to show in messages.
_SHOWN_DIGITS = 16
_MAX_NAME_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class SummedTensor:
    """A tensor of integers to sum over the clients.

    Attributes:
        bound: A client's values are from 0 to `bound` - 1.
        modulus: Modulus of the sum, from `bound` to 2^64.
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
        """Number of values."""
        return math.prod(self.shape)

    @property
    def packed_bytes(self) -> int:
        """Number of bytes of a client's packed values."""
        return masks.packed_size(self.size, self.modulus)

    def values(self, value: np.ndarray, where: str) -> np.ndarray:
        """Checks a client's values, and returns a flat uint64 copy."""
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
    """Settings of a secure sum, which each party creates from its own copy of the plan.

    Attributes:
        plan: SHA-256 of the plan, for example of its manifest.
        tensors: The tensors to sum.
        max_clients: Maximum number of clients in a sum, which the tensors' moduli must fit.
        min_clients: Minimum number of clients in an unmasked sum, at least 3.
    """

    plan: bytes
    tensors: tuple[SummedTensor, ...]
    max_clients: int
    min_clients: int = MIN_CLIENTS

    def __post_init__(self) -> None:
        if len(self.plan) != DIGEST_BYTES:
            raise SumError(f"plan: expected a SHA-256 of 32 bytes, found {len(self.plan)}")
        if not MIN_CLIENTS <= self.min_clients <= self.max_clients <= MAX_CLIENTS:
            raise SumError(
                f"secure aggregation: expected {MIN_CLIENTS} <= min_clients <= max_clients <= "
                f"{MAX_CLIENTS}, found {self.min_clients} and {self.max_clients}"
            )
        names = [tensor.name for tensor in self.tensors]
        if not names or len(set(names)) != len(names):
            raise SumError(f"secure aggregation: expected tensors of distinct names, found {names}")

    def digest(self) -> bytes:
        """Returns SHA-256 of the settings; parties with different digests cannot cooperate."""
        fields = {**dataclasses.asdict(self), "plan": self.plan.hex()}
        return digest("sum plan", json.dumps(fields, sort_keys=True).encode())

    def threshold(self, clients: int) -> int:
        """Returns the number of clients that must at least remain; this many can reveal a secret.

        A threshold of more than two thirds protects against a dishonest server that controls less
        than a third of the clients (Bonawitz et al. 2017, section 6.2).
        """
        return 2 * clients // 3 + 1

    @property
    def packed_bytes(self) -> int:
        """Number of bytes of a client's packed values for all tensors."""
        return sum(tensor.packed_bytes for tensor in self.tensors)

    def check_values(self, values: Mapping[str, np.ndarray], where: str) -> list[np.ndarray]:
        """Checks a client's values; returns flat uint64 copies in the order of `tensors`."""
        names = [tensor.name for tensor in self.tensors]
        if set(values) != set(names):
            raise SumError(f"{where}: expected the tensors {names}, found {sorted(values)}")
        return [tensor.values(np.asarray(values[tensor.name]), where) for tensor in self.tensors]

    def apply_masks(self, totals: Sequence[np.ndarray], key: bytes, sign: int) -> None:
        """Adds a key's masks to all tensors in place, or subtracts the masks."""
        for number, (tensor, total) in enumerate(zip(self.tensors, totals)):
            masks.apply_mask(total, tensor.modulus, key, number, sign)

    def pack(self, totals: Sequence[np.ndarray]) -> bytes:
        """Packs the vectors of all tensors into `packed_bytes` bytes."""
        return b"".join(
            masks.pack(total, tensor.modulus) for tensor, total in zip(self.tensors, totals)
        )

    def unpack(self, packed: bytes) -> list[np.ndarray] | None:
        """Unpacks one vector per tensor; returns None if a number or the padding is invalid."""
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
    """The names of a fleet's clients, keyed by Ed25519 public key."""

    names: Mapping[bytes, str]

    def __post_init__(self) -> None:
        for key, name in self.names.items():
            if len(key) != KEY_BYTES:
                raise SumError(f"identity {name!r}: expected a key of 32 bytes, found {len(key)}")
            if not name.isprintable() or not 0 < len(name) <= _MAX_NAME_LENGTH:
                raise SumError(
                    f"identity {key.hex()}: expected a printable name of 1 to {_MAX_NAME_LENGTH} "
                    f"characters, found {name[:_MAX_NAME_LENGTH]!r}"
                )
        if len(set(self.names.values())) != len(self.names):
            raise SumError("identities: expected distinct names, found one twice")

    def __contains__(self, identity: bytes) -> bool:
        return identity in self.names

    def name(self, identity: bytes) -> str:
        """Returns a client's name for human-readable messages."""
        return self.names.get(identity) or f"of the unknown key {identity.hex()[:_SHOWN_DIGITS]}"
