"""Random values for mutations: flipped bytes, strings that name files or addresses, numbers."""

import random


class Draws:
    """Generator of random values for one mutant.

    Attributes:
        rng: Random number generator of all values.
        canary: A path that the sandboxed process must not write.
    """

    def __init__(self, rng: random.Random, canary: str) -> None:
        self.rng, self.canary = rng, canary
        self._texts = [f"file://{canary}", "grpc://localhost:1", "", "/etc/passwd", "../x", "\0"]
        self._texts += ["x" * 5000, f"{canary}\0.ckpt", "localhost:1", "/proc/self/mem"]

    def flipped(self, content: bytes) -> bytes:
        """Returns a copy of `content` with a few bytes changed, inserted or deleted."""
        result = bytearray(content)
        for _ in range(self.rng.choice([1, 1, 2, 5, 20])):
            at = self.rng.randrange(len(result) + 1)
            kind = self.rng.random()
            if kind < 0.6 and at < len(result):
                result[at] = self.rng.choice([0, 1, 127, 128, 255, self.rng.randrange(256)])
            elif kind < 0.8:
                result[at:at] = self.rng.randbytes(self.rng.choice([1, 4, 8]))
            else:
                del result[at : at + self.rng.choice([1, 4, 100])]
        return bytes(result)

    def text(self) -> bytes:
        """Returns a string that may name a file or an address."""
        return self.rng.choice([self.canary, self.rng.choice(self._texts)]).encode()

    def number(self) -> int:
        """Returns an integer, often the limit of an integer type."""
        return self.rng.choice([0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**62, -(2**63)])
