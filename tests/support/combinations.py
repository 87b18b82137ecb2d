"""A covering array: few rows of a training's choices that contain every allowed pair of choices."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

Row = Mapping[str, str]
Choice = tuple[str, str]

FACTORS: Mapping[str, Sequence[str]] = {
    "algorithm": (
        *("agnostic_fed_avg", "stochastic_afl", "delta_fl", "fed_avg", "fed_prox"),
        *("q_ffl", "term", "fed_boost", "afl_boost"),
    ),
    "privacy": ("none", "central", "tree", "distributed"),
    "aggregation": ("plain", "secure"),
    # Client modes of the cohort runtime, and other runtimes.
    "runtime": ("streamed", "vectorised", "tff", "ray"),
    "cohort_sampling": ("uniform", "stratified", "poisson", "turns"),
    "update_aggregator": ("none", "robust", "compressed", "dp", "secure"),
}


def _refused() -> Iterator[tuple[Choice, Choice]]:
    yield ("privacy", "distributed"), ("aggregation", "plain")
    yield ("privacy", "central"), ("cohort_sampling", "turns")
    for sampling in _others("cohort_sampling", "turns"):
        yield ("privacy", "tree"), sampling
    for aggregator in _others("update_aggregator", "none"):
        for choice in (*_others("privacy", "none"), *_others("runtime", "tff")):
            yield aggregator, choice
        if aggregator[1] != "secure":
            yield aggregator, ("aggregation", "secure")


def _others(factor: str, value: str) -> list[Choice]:
    return [(factor, other) for other in FACTORS[factor] if other != value]


# Pairs of choices that commands reject.
REFUSED = frozenset(map(frozenset, _refused()))


def pairs(row: Row) -> set[frozenset[Choice]]:
    return set(map(frozenset, itertools.combinations(row.items(), 2)))


def _needed(row: Row) -> set[frozenset[Choice]]:
    """Returns the row's pairs that must occur in the array.

    With one of TFF's aggregators, results agree only roughly, and the aggregator does not depend on
    the algorithm. An algorithm therefore needs only one of TFF's aggregators, and its pairs with
    runtimes and sums must occur in rows without them.
    """
    if row["update_aggregator"] == "none":
        return pairs(row)
    algorithm = ("algorithm", row["algorithm"])
    others = {pair for pair in pairs(row) if algorithm not in pair}
    return others | {frozenset((algorithm, ("update_aggregator", "any")))}


def covering(first: Sequence[Row]) -> list[Row]:
    """Returns the given rows, and greedily added rows until all needed pairs occur."""
    every = [dict(zip(FACTORS, values)) for values in itertools.product(*FACTORS.values())]
    allowed = [(row, _needed(row)) for row in every if not pairs(row) & REFUSED]
    missing = set().union(*(held for _, held in allowed)).difference(*map(_needed, first))
    rows = list(first)
    while missing:
        row, held = max(allowed, key=lambda entry: len(entry[1] & missing))
        rows.append(row)
        missing -= held
    return rows
