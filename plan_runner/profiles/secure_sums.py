"""Sums modulo a number, with the checks that the parties of secure aggregation make."""

import abc
import dataclasses
from typing import Any, Callable

import numpy as np

from plan_runner.errors import PlanError
from plan_runner.files.manifest import TensorType
from plan_runner.graphs.messages import dtype_name

LARGEST_MODULUS = 1 << 62
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class ModulusScheme(abc.ABC):
    """How the modulus of a sum follows from the plan and the number of clients."""

    @property
    @abc.abstractmethod
    def bound(self) -> int:
        """Every value of a client is below it."""

    @abc.abstractmethod
    def modulus(self, clients: int) -> int:
        """Returns the modulus of a sum over so many clients."""


@dataclasses.dataclass(frozen=True)
class FixedModulus(ModulusScheme):
    """One modulus for values and sums, which may wrap around."""

    value: int

    @property
    def bound(self) -> int:
        """Every value of a client is below it."""
        return self.value

    def modulus(self, clients: int) -> int:
        """Returns the modulus of a sum over so many clients."""
        del clients
        return self.value


@dataclasses.dataclass(frozen=True)
class GrowingModulus(ModulusScheme):
    """A modulus that no sum reaches: the smallest power of two above the largest one."""

    base: int

    @property
    def bound(self) -> int:
        """Every value of a client is below it."""
        return self.base

    def modulus(self, clients: int) -> int:
        """Returns the modulus of a sum over so many clients."""
        return 1 << (clients * (self.base - 1)).bit_length()


def _bit_width(value: int) -> ModulusScheme:
    # Beyond the largest modulus anyway; a shift by a wild number would take all memory.
    return GrowingModulus(1 << value if 0 <= value <= 64 else 0)


_SCHEMES: dict[str, Callable[[Any], ModulusScheme]] = {
    "quantized_input_bitwidth": _bit_width,
    "fixed_modulus": lambda part: FixedModulus(part.modulus),
    "modulus_times_shard_size": lambda part: GrowingModulus(part.base_modulus),
}


@dataclasses.dataclass(frozen=True)
class SecureTensor:
    """A tensor that clients send into a secure sum only."""

    name: str
    kind: TensorType
    scheme: ModulusScheme
    restore_name: str


def read_side_channel(name: str, channel: Any, where: str) -> SecureTensor:
    """Reads a SideChannel.

    Raises:
        PlanError: If it has missing parts or impossible values.
    """
    if not channel.HasField("secure_aggregand") or not channel.restore_name:
        raise PlanError(f"{where}: expected secure_aggregand and restore_name, found a part of it")
    aggregand = channel.secure_aggregand
    dtype = dtype_name(aggregand.dtype, f"{where}: dtype")
    if dtype not in _INTEGERS:
        raise PlanError(f"{where}: dtype: expected integers, found {dtype}")
    shape = tuple(dimension.size for dimension in aggregand.dimension)
    if any(size < 0 for size in shape):
        raise PlanError(f"{where}: dimension: expected sizes, found {shape}")
    which = aggregand.WhichOneof("modulus_scheme")
    if which is None:
        raise PlanError(f"{where}: expected one of {', '.join(_SCHEMES)}, found none")
    scheme = _SCHEMES[which](getattr(aggregand, which))
    if not 1 <= scheme.bound <= LARGEST_MODULUS:
        raise PlanError(f"{where}: {which}: expected a modulus from 1 to 2^62, found another")
    return SecureTensor(name, TensorType(dtype, shape), scheme, channel.restore_name)


class SecureSum:
    """The sum of one tensor over the clients of a round.

    Args:
        tensor: The tensor.
        clients: Their number, which all parties know before.

    Raises:
        PlanError: If secure aggregation has no room for so many.
    """

    def __init__(self, tensor: SecureTensor, clients: int) -> None:
        self._tensor = tensor
        self._modulus = tensor.scheme.modulus(clients)
        if self._modulus > LARGEST_MODULUS:
            raise PlanError(
                f"{tensor.name}: expected a modulus of at most 2^62, {clients} clients with values "
                f"below {tensor.scheme.bound} need {self._modulus}"
            )
        shape = [size or 0 for size in tensor.kind.shape]
        # Twice a modulus fits.
        self._total = np.zeros(shape, np.uint64)

    @property
    def bytes_up(self) -> int:
        """What a client sends: every number in the bits of the modulus, packed."""
        bits = self._total.size * (self._modulus - 1).bit_length()
        return -(-bits // 8)

    def add(self, value: np.ndarray, where: str) -> None:
        """Adds one client's values.

        Raises:
            PlanError: If they are of another dtype or shape, or one is out of range.
        """
        kind, bound = self._tensor.kind, self._tensor.scheme.bound
        place = f"{where}: {self._tensor.name}"
        if not kind.admits(value.dtype.name, value.shape):
            found = TensorType(value.dtype.name, value.shape)
            raise PlanError(f"{place}: expected {kind}, found {found}")
        if value.size:
            smallest, largest = int(value.min()), int(value.max())
            if smallest < 0 or largest >= bound:
                wrong = smallest if smallest < 0 else largest
                raise PlanError(f"{place}: expected values from 0 to {bound - 1}, found {wrong}")
        self._total = (self._total + value.astype(np.uint64)) % np.uint64(self._modulus)

    def result(self) -> np.ndarray:
        """Returns the sum, in the dtype that the server's graph expects.

        Raises:
            PlanError: If it does not fit.
        """
        dtype = np.dtype(self._tensor.kind.dtype)
        largest = int(self._total.max()) if self._total.size else 0
        if largest > np.iinfo(dtype).max:
            raise PlanError(f"{self._tensor.name}: expected a sum within {dtype}, found {largest}")
        return self._total.astype(dtype)
