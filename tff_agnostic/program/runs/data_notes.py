"""Warnings about a run's clients, which the run's page shows first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from tff_agnostic.base.errors import agreeing, counted, some_of
from tff_agnostic.data.data_warnings import Remark, share
from tff_agnostic.data.presence import clients_for_presence, expected_presence

# Below this expected fraction of rounds, a domain counts as rare.
FEW_ROUNDS = 0.5
# Minimum increase of a domain's fraction of rounds for which a flag is recommended.
_GAIN = 0.05

# A client dominates a domain if it has at least this share of the domain's examples, and at least
# this many times an equal share.
_LARGE_SHARE = 0.25
_TIMES_EQUAL = 3.0
_MAX_NAMES = 5


def dominant_clients(counts: np.ndarray, domain_names: Sequence[str], split: str) -> list[Remark]:
    """Returns a warning about domains in which one client has a large share of the examples.

    Args:
        counts: Examples of each client and domain, int [clients, p].
    """
    totals, holders = counts.sum(axis=0), np.sum(counts > 0, axis=0)
    shares = counts.max(axis=0, initial=0) / np.maximum(totals, 1)
    limits = np.maximum(_LARGE_SHARE, _TIMES_EQUAL / np.maximum(holders, 1))
    order = [int(i) for i in np.argsort(-shares, kind="stable") if shares[i] >= limits[i]]
    if not order:
        return []
    large = {domain_names[i]: float(shares[i]) for i in order}
    listed = [f"{domain_names[i]} ({shares[i]:.0%}, {holders[i]} clients)" for i in order]
    verb = agreeing(len(order), "has", "have")
    return [
        Remark(
            "dominant_clients",
            f"{len(order)} of {len(domain_names)} domains {verb} a client with a large share of "
            f"their {split} examples: {some_of(listed, _MAX_NAMES)}. Numbers of all examples there "
            "are mostly of that client; means over clients count it once.",
            {"split": split, "domains": large},
        )
    ]


def pooled_examples(num_clients: int, clients_per_round: int) -> Remark:
    """Returns the warning that a run trains on pooled examples, without federated training."""
    return Remark(
        "pooled",
        f"no federated training: the examples of all {counted(num_clients, 'training client')} "
        "are in one place, and a round is minibatch SGD on as many as "
        f"{counted(clients_per_round, 'client')} would have on average (--pooled).",
        {"clients": num_clients, "clients_per_round": clients_per_round},
    )


def examples_beyond(sizes: np.ndarray, max_examples: Optional[int], where: str) -> list[Remark]:
    """Returns warnings about examples beyond --max_examples.

    Args:
        sizes: Examples of each client, [clients].
        max_examples: Maximum number of examples that a client uses; None for all.
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
    """Returns the expected number of examples that each client holds out of training.

    A client's share of its n examples is rounded up or down at random, but never up to n.

    Args:
        sizes: Examples of each client, [clients].
        share: Fraction to hold out, in [0, 1); see `computations.Holdout`.
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
        kept_out: Fraction that each client holds out, in [0, 1); see `computations.Holdout`.
        max_examples: Maximum number of examples that a client uses; None for all.
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


def rarely_present(
    counts: np.ndarray,
    domain_names: Sequence[str],
    sampling: str,
    clients_per_round: int,
    without_it: str,
    ways: Sequence[str] = (),
) -> list[Remark]:
    """Returns warnings about domains expected in few rounds, for a run whose lambda moves.

    Args:
        counts: Examples of each training client and domain, int [clients, p].
        sampling: A name in `data.sampling.COHORT_SAMPLINGS`.
        clients_per_round: Number of clients c in a round.
        without_it: Change of lambda in a round without the domain, such as "stays as it is".
        ways: Advice that is given in addition to having the domain in more rounds.
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
    if stratified > presence[rarest] + _GAIN:
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
