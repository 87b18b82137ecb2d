"""Compares the costs of secure aggregation and plain sums, in processor seconds and bytes.

    .venv/bin/python -m benchmarks.secure_sum_cost

The script runs the protocol without a network and without training. All clients and the server run
alternately in one process. Each client has random 32-bit integers. Some clients vanish after they
have sent their shares, which is the most expensive case for the server. A client's cost is the mean
over the remaining clients. For plain sums, these clients send the same integers without masks.
"""

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, TypeVar

import numpy as np
from tabulate import tabulate

from fleet.secure_aggregation import masks, messages, primitives
from fleet.secure_aggregation.client import Client
from fleet.secure_aggregation.server import Server
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SummedTensor, SumPlan

_NAME = "update"
_BITS = 32
_T = TypeVar("_T")


@dataclasses.dataclass
class Cost:
    """Cost of one sum.

    Attributes:
        client: Processor seconds of all remaining clients together.
        server: Processor seconds of the server.
        down: Bytes sent to all remaining clients together.
        up: Bytes received from all remaining clients together.
    """

    client: float = 0.0
    server: float = 0.0
    down: int = 0
    up: int = 0

    def charge_client(self, call: Callable[[], bytes], request: bytes = b"") -> bytes:
        """Calls a client, adds its cost, and returns its output."""
        began = time.process_time()
        answer = call()
        self.client += time.process_time() - began
        self.down += len(request)
        self.up += len(answer)
        return answer

    def charge_server(self, call: Callable[[], _T]) -> _T:
        """Calls the server, adds its cost, and returns its result."""
        began = time.process_time()
        result = call()
        self.server += time.process_time() - began
        return result


def _plan(clients: int, values: int) -> SumPlan:
    modulus = 1 << (_BITS + (clients - 1).bit_length())
    tensor = SummedTensor(_NAME, (values,), 1 << _BITS, modulus)
    return SumPlan(bytes(primitives.DIGEST_BYTES), (tensor,), clients)


def _values(client: int, values: int) -> np.ndarray:
    """Draws a client's integers; to save memory, each call draws the same integers again."""
    return np.random.default_rng(client).integers(0, 1 << _BITS, values, np.uint64)


def plain(clients: int, values: int, vanish: int) -> tuple[Cost, np.ndarray]:
    """Returns the cost and the sum if clients send their integers without masks."""
    cost, (tensor,) = Cost(), _plan(clients, values).tensors
    total = np.zeros(values, np.uint64)
    for number in range(vanish, clients):
        integers = _values(number, values)
        sent = cost.charge_client(functools.partial(masks.pack, integers, tensor.modulus))

        def take(sent: bytes = sent) -> None:
            vector = masks.unpack(sent, values, tensor.modulus)
            assert vector is not None, "packed here"
            masks.add_into(total, vector, tensor.modulus)

        cost.charge_server(take)
    return cost, total


def secure(clients: int, values: int, vanish: int, folder: Path) -> tuple[Cost, np.ndarray]:
    """Returns the cost and the sum with secure aggregation."""
    cost, plan = Cost(), _plan(clients, values)
    secrets = [primitives.random_bytes(primitives.KEY_BYTES) for _ in range(clients)]
    publics = [primitives.identity_public(secret) for secret in secrets]
    identities = Identities({key: f"client {n}" for n, key in enumerate(publics)})
    parties = [
        Client(plan, secret, identities, SessionFolder(folder / f"{n}"))
        for n, secret in enumerate(secrets)
    ]
    at = SessionFolder(folder / "server")
    server = cost.charge_server(lambda: Server.begin(plan, identities, at, publics))
    while server.stage is not None:
        has_values = server.stage == messages.Type.MASKED
        for key, request in cost.charge_server(server.requests).items():
            number = publics.index(key)
            stays = number >= vanish
            if has_values and not stays:
                continue
            integers = {_NAME: _values(number, values)} if has_values else {}
            answer = functools.partial(
                parties[number].answer, request, lambda integers=integers: integers
            )
            cost.charge_server(
                functools.partial(
                    server.receive, cost.charge_client(answer, request) if stays else answer()
                )
            )
        cost.charge_server(server.close)
    return cost, cost.charge_server(server.result)[_NAME]


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a table row for each number of clients, number of values, and kind of sum."""
    parser = argparse.ArgumentParser(prog="secure_sum_cost", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100], help="at least 3")
    parser.add_argument("--values", type=int, nargs="+", default=[10**3, 10**5, 10**7])
    parser.add_argument(
        "--vanish", type=float, default=0.1, help="share of the clients (default: %(default)s)"
    )
    settings = parser.parse_args(argv)
    columns = ["clients", "values", "sums", "CPU s of a client", "CPU s of the server"]
    columns += ["bytes to a client", "bytes from a client"]
    for clients in settings.clients:
        vanish = int(settings.vanish * clients)
        rows = []
        for values in settings.values:
            with tempfile.TemporaryDirectory(prefix="secure_sum_cost_") as name:
                sides = {
                    "plain": plain(clients, values, vanish),
                    "secure": secure(clients, values, vanish, Path(name)),
                }
            if not np.array_equal(sides["plain"][1], sides["secure"][1]):
                raise SystemExit(f"{clients} clients, {values} values: the sums differ")
            for side, (cost, _) in sides.items():
                stay = clients - vanish
                used = f"{cost.client / stay:.4f}", f"{cost.server:.3f}"
                sent = f"{cost.down / stay:,.0f}", f"{cost.up / stay:,.0f}"
                rows.append([clients, f"{values:,}", side, *used, *sent])
        print(tabulate(rows, columns, "github", disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
