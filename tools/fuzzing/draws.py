"""What random changes are made of: bytes that are flipped, texts that reach something, numbers."""

import random


class ClientNoise:
    """Draws of one mutant.

    Args:
        rng: Draws them.
        canary: A path outside of what the process may write.

    Attributes:
        rng: The same.
        canary: The same.
    """

    def __init__(self, rng: random.Random, canary: str) -> None:
        self.rng, self.canary = rng, canary
        self._texts = [f"file://{canary}", "grpc://localhost:1", "", "/etc/passwd", "../x", "\0"]
        self._texts += ["x" * 5000, f"{canary}\0.ckpt", "localhost:1", "/proc/self/mem"]

    def flipped(self, content: bytes) -> bytes:
        """Returns bytes of which a few are others, more or fewer."""
        found = bytearray(content)
        for _ in range(self.rng.choice([1, 1, 2, 5, 20])):
            at = self.rng.randrange(len(found) + 1)
            kind = self.rng.random()
            if kind < 0.6 and at < len(found):
                found[at] = self.rng.choice([0, 1, 127, 128, 255, self.rng.randrange(256)])
            elif kind < 0.8:
                found[at:at] = self.rng.randbytes(self.rng.choice([1, 4, 8]))
            else:
                del found[at : at + self.rng.choice([1, 4, 100])]
        return bytes(found)

    def text(self) -> bytes:
        """Returns a text that a file, an address or a name may be."""
        return self.rng.choice([self.canary, self.rng.choice(self._texts)]).encode()

    def number(self) -> int:
        """Returns a number, often a limit of a type."""
        return self.rng.choice([0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**62, -(2**63)])
