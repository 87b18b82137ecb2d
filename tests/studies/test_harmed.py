"""Domains that a row gave up: what is worse, by numbers."""

import numpy as np
import pytest

from tff_agnostic.studies.harmed import loses


@pytest.mark.parametrize(
    ("ours", "theirs", "higher_is_better", "expected"),
    [
        ([0.3], [0.5], True, True),
        ([0.3], [0.5], False, False),
        # Within the spread of one of them.
        ([0.4, 0.42], [0.3, 0.7], True, False),
        ([0.1, 0.12], [0.3, 0.4], True, True),
        ([np.nan], [0.5], True, False),
    ],
)
def test_what_is_worse(ours, theirs, higher_is_better, expected):
    assert loses(np.array(ours), np.array(theirs), higher_is_better) is expected
