"""Warnings about data, which a user needs before trusting a result.

Imports print them about stores, see `importing.report`, and runs about their training data; the
lost examples are counted here for both. So is the share of the rounds in which a domain is
expected, from its clients and how cohorts are drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.errors import agreeing, counted, some_of

# With fewer test examples, an accuracy has an error of five points or more (one standard
# deviation).
FEW_EXAMPLES = 100
# Kinds of remarks about what training did, which reports tell before all others.
GIVEN_UP, ABSURD, UNMOVED = "given_up", "absurd_losses", "unmoved_lambda"
OF_TRAINING = (GIVEN_UP, ABSURD, UNMOVED)
# A domain in fewer of the rounds than this share is absent from most of them.
FEW_ROUNDS = 0.5
# By how much a flag has to raise a domain's share of the rounds to be named.
_WORTH_SAYING = 0.05
# Names of domains in a sentence.
_MAX_NAMES = 5
# (which clients have examples of each domain, bool [clients, p]; the domain that most of each
# client's examples belong to, int [clients]; c) -> probabilities [p].
Presence = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Remark:
    """One thing to know.

    Attributes:
        kind: Kind of the warning.
        text: A sentence for people, with the flag that changes it.
        figures: The numbers and names in it.
    """

    kind: str
    text: str
    figures: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {"kind": self.kind, "text": self.text, **self.figures}


def pooled_examples(num_clients: int, clients_per_round: int) -> Remark:
    """Returns what is to be known first of a run that is not federated."""
    return Remark(
        "pooled",
        f"no federated training: the examples of all {counted(num_clients, 'training client')} "
        "are in one place, and a round is minibatch SGD on as many as "
        f"{counted(clients_per_round, 'client')} would have on average (--pooled).",
        {"clients": num_clients, "clients_per_round": clients_per_round},
    )


def cut_words(lengths: Mapping[int, int], sequence_length: int, advice: str) -> list[Remark]:
    """Returns warnings about words that do not fit into an example.

    Args:
        lengths: Number of training sentences by their number of words.
        sequence_length: T, the number of words of a sentence that are predicted.
        advice: How to keep the words that are cut off.
    """
    sentences = sum(lengths.values())
    words = sum(n * count for n, count in lengths.items())
    long = sum(count for n, count in lengths.items() if n > sequence_length)
    cut = sum((n - sequence_length) * count for n, count in lengths.items() if n > sequence_length)
    if not cut:
        return []
    return [
        Remark(
            "words_cut",
            f"{share(cut, words)} of the words of train ({cut} of {words}) are cut off: "
            f"{share(long, sentences)} of the sentences have more than "
            f"--sequence_length={sequence_length} words; {advice}",
            {
                "words": words,
                "words_cut": cut,
                "sentences": sentences,
                "sentences_cut": long,
                "sequence_length": sequence_length,
            },
        )
    ]


def examples_beyond(sizes: np.ndarray, max_examples: Optional[int], where: str) -> list[Remark]:
    """Returns warnings about examples beyond --max_examples.

    Args:
        sizes: Examples of each client, [clients].
        max_examples: How many of a client are used; None for all.
        where: The split of the clients, such as "train".
    """
    if max_examples is None:
        return []
    beyond = np.maximum(sizes - max_examples, 0)
    clients, left_out, total = int(np.sum(beyond > 0)), int(np.sum(beyond)), int(np.sum(sizes))
    if not left_out:
        return []
    return [
        Remark(
            "examples_beyond",
            f"{share(left_out, total)} of the examples of {where} ({left_out} of {total}) are not "
            f"trained on: {clients} of {len(sizes)} clients have more than "
            f"--max_examples={max_examples}.",
            {
                "examples": total,
                "examples_left_out": left_out,
                "clients": len(sizes),
                "clients_cut": clients,
                "max_examples": max_examples,
            },
        )
    ]


def expected_kept_out(sizes: np.ndarray, share: float) -> np.ndarray:
    """Returns how many of its examples each client is expected to keep out of its training.

    A share of n is rounded up or down by chance, but never to all of n.

    Args:
        sizes: Examples of each client, [clients].
        share: In [0, 1); see `computations.Holdout`.
    """
    n = sizes.astype(np.float64)
    expected: np.ndarray = np.where(
        n > 0, share * n - np.maximum(1.0 - n * (1.0 - share), 0.0), 0.0
    )
    return expected


def examples_kept_out(
    sizes: np.ndarray, kept_out: float, max_examples: Optional[int] = None
) -> list[Remark]:
    """Returns warnings about examples that clients hold out from training.

    Args:
        sizes: Examples of each training client, [clients].
        kept_out: The share that each of them keeps out, in [0, 1); see `computations.Holdout`.
        max_examples: How many of a client are used; None for all.
    """
    if not kept_out:
        return []
    used = sizes if max_examples is None else np.minimum(sizes, max_examples)
    expected = np.sum(expected_kept_out(used, kept_out))
    total, single = int(np.sum(used)), int(np.sum(used == 1))
    text = (
        f"about {share(round(expected), total)} of the examples of train ({round(expected)} of "
        f"{total}) are not trained on: losses are measured on them, by "
        f"--measured_share={kept_out:g}."
    )
    if single:
        text += (
            f" {single} of {len(sizes)} clients have a single example, train on it and measure "
            "nothing."
        )
    return [
        Remark(
            "examples_kept_out",
            text,
            {
                "examples": total,
                "examples_kept_out": round(expected),
                "clients": len(sizes),
                "clients_of_one_example": single,
                "measured_share": kept_out,
            },
        )
    ]


def domains_without(examples: Mapping[str, int], split: str) -> list[Remark]:
    """Returns warnings about domains without any example in a split.

    Args:
        examples: Examples of each domain in the split.
    """
    names = [name for name, n in examples.items() if n == 0]
    if not names:
        return []
    means = {
        "train": "nothing is learnt of them.",
        "test": "they cannot be evaluated.",
        "heldout": "tuning is blind to them.",
    }
    return [
        Remark(
            "domains_without_examples",
            f"{_of_domains(names, examples)} no client in {split}: "
            f"{some_of(names, _MAX_NAMES)}; {means.get(split, 'they cannot be evaluated.')}",
            {"split": split, "domains": names},
        )
    ]


def small_domains(examples: Mapping[str, int], split: str, fewest: int) -> list[Remark]:
    """Returns warnings about domains with few examples in a split.

    Args:
        examples: Examples of each domain in the split.
        fewest: How many are not few.
    """
    names = [name for name, n in examples.items() if 0 < n < fewest]
    if not names:
        return []
    means = {
        "train": "their weight is learnt of few.",
        "test": 'the "worst" domain may be one of them by chance.',
    }
    listed = [f"{name} ({examples[name]})" for name in sorted(names, key=lambda n: examples[n])]
    return [
        Remark(
            "small_domains",
            f"{_of_domains(names, examples)} fewer than {fewest} examples in {split}: "
            f"{some_of(listed, _MAX_NAMES)}; "
            f"{means.get(split, 'their figures are uncertain.')}",
            {
                "split": split,
                "fewest": fewest,
                "domains": {name: examples[name] for name in names},
            },
        )
    ]


def _of_domains(names: Sequence[str], examples: Mapping[str, int]) -> str:
    return f"{len(names)} of {len(examples)} domains {agreeing(len(names), 'has', 'have')}"


def rarely_present(
    counts: np.ndarray,
    domain_names: Sequence[str],
    sampling: str,
    clients_per_round: int,
    without_it: str,
    ways: Sequence[str] = (),
) -> list[Remark]:
    """Returns warnings about domains that are expected in few rounds, for a lambda that moves.

    Args:
        counts: Examples of each training client and domain, int [clients, p].
        domain_names: Names of the p domains.
        sampling: A name in `data.sampling.COHORT_SAMPLINGS`.
        clients_per_round: c.
        without_it: What lambda of a domain does in a round without it.
        ways: What to do about that, beside having the domain in more rounds.
    """
    presence = expected_presence(counts, sampling, clients_per_round)
    num_holders = np.sum(counts > 0, axis=0)
    rare = [int(i) for i in np.argsort(presence, kind="stable") if num_holders[i]]
    rare = [i for i in rare if presence[i] < FEW_ROUNDS]
    if not rare:
        return []
    rarest = rare[0]
    expected = {domain_names[i]: float(presence[i]) for i in rare}
    listed = [f"{name} ({part:.0%})" for name, part in expected.items()]
    needed = clients_for_presence(int(num_holders[rarest]), len(counts), FEW_ROUNDS)
    more = [f"--clients_per_round={needed} is expected to have each in half of them"]
    stratified = expected_presence(counts, "stratified", clients_per_round)[rarest]
    if stratified > presence[rarest] + _WORTH_SAYING:
        name = domain_names[rarest]
        more.append(f"--cohort_sampling=stratified has {name} in {stratified:.0%}")
    return [
        Remark(
            "rarely_present",
            f"{len(rare)} of {len(domain_names)} domains are expected in fewer than half of the "
            f"rounds: {some_of(listed, _MAX_NAMES)}. In a round without a domain its lambda "
            f"{without_it}. {'; '.join([*ways, *more])}.",
            {"expected_in_rounds": expected, "clients_per_round": clients_per_round},
        )
    ]


def share(part: int, whole: int) -> str:
    """Returns a share in percent."""
    return f"{part / max(1, whole):.1%}"


def expected_presence(counts: np.ndarray, sampling: str, clients_per_round: int) -> np.ndarray:
    """Returns the probability that a round has a client with examples of a domain, [p].

    It is exact for uniform draws and for each client by itself. For turns and for stratified draws
    it is exact in the mean over the order of the clients, where a domain's clients are in one
    stratum; over several strata they are taken for independent.

    Args:
        counts: Examples of each training client and domain, int [clients, p].
        sampling: A name in `data.sampling.COHORT_SAMPLINGS`.
        clients_per_round: c.
    """
    return PRESENCE[sampling](counts > 0, np.argmax(counts, axis=1), clients_per_round)


def clients_for_presence(num_holders: int, num_clients: int, presence: float) -> int:
    """Returns the fewest clients of a uniform round with which a domain is in that share of rounds.

    Args:
        num_holders: Clients with examples of the domain, at least 1.
        num_clients: N.
        presence: The share, in (0, 1).
    """
    low, high = 1, num_clients
    # The more clients, the rarer its absence.
    while low < high:
        middle = (low + high) // 2
        if 1.0 - _absent(num_holders, num_clients, middle) >= presence:
            high = middle
        else:
            low = middle + 1
    return low


def _absent(num_holders: int, num_clients: int, drawn: int) -> float:
    """Returns the chance that none of some clients is among those drawn without replacement."""
    left = np.arange(num_clients - drawn, num_clients - drawn - num_holders, -1)
    if left.size and left[-1] <= 0:
        return 0.0
    of = np.arange(num_clients, num_clients - num_holders, -1)
    return float(np.prod(left / of))


def _uniform(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    del strata
    absent = [_absent(int(n), len(holds), clients_per_round) for n in holds.sum(axis=0)]
    return 1.0 - np.array(absent)


def _poisson(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    del strata
    return 1.0 - (1.0 - clients_per_round / len(holds)) ** holds.sum(axis=0)


def _turns(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    # As `sampling.turns` divides the clients: no cohort has fewer than c.
    cohorts = len(holds) // clients_per_round
    small, larger = divmod(len(holds), cohorts)
    presence = (cohorts - larger) * _uniform(holds, strata, small)
    if larger:
        presence += larger * _uniform(holds, strata, small + 1)
    return presence / cohorts


def _stratified(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    absent = np.ones([holds.shape[1]])
    for name in np.unique(strata):
        own = holds[strata == name]
        # Its share of the places, rounded up or down by chance.
        whole, rest = divmod(len(own) * clients_per_round, len(holds))
        up = rest / len(holds)
        for i, n in enumerate(own.sum(axis=0)):
            # No place is rounded up in a stratum that has one for every client.
            more = _absent(int(n), len(own), whole + 1) if rest else 0.0
            absent[i] *= (1.0 - up) * _absent(int(n), len(own), whole) + up * more
    return 1.0 - absent


PRESENCE: Mapping[str, Presence] = {
    "uniform": _uniform,
    "stratified": _stratified,
    "poisson": _poisson,
    "turns": _turns,
}
