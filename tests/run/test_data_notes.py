"""Notes about the clients of a run."""

import numpy as np

from tff_agnostic.program.runs.data_notes import dominant_clients


def test_dominant_client_is_named_with_its_share():
    # A single client has 41 of the first domain's 100 examples.
    first = [41, *[2] * 28, 3]
    counts = np.stack([first, [5] * 30], axis=1)
    (remark,) = dominant_clients(counts, ("rural", "urban"), "train")
    assert remark.figures == {"split": "train", "domains": {"rural": 0.41}}
    assert remark.text.startswith(
        "1 of 2 domains has a client with a large share of their train examples: rural (41%, 30 "
        "clients)."
    )


def test_few_equal_clients_are_not_dominant():
    assert dominant_clients(np.array([[5, 0], [5, 9], [5, 9]]), ("a", "b"), "test") == []
    assert dominant_clients(np.zeros([0, 2], int), ("a", "b"), "test") == []
