"""What readers of public formats hand to the writer of stores."""

import dataclasses
from collections.abc import Mapping
from typing import Optional, Union

import numpy as np

Value = Union[str, int, float, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Record:
    """One example of one client.

    Attributes:
        client: The client's id.
        domain: Name of the example's domain.
        features: Everything else: "tokens" (words separated by single spaces) of a sentence, or
            "label" and whatever it is told by.
        split: "train", "heldout" or "test" where the source says so.
    """

    client: str
    domain: str
    features: Mapping[str, Value]
    split: Optional[str] = None
