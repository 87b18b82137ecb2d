"""Dishonest servers and clients cause one-line errors, which name the party at fault if known.

A dishonest party is an honest one that sends forged messages or uses a patched function.
"""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import numpy as np
import pytest

from fleet.secure_aggregation import messages, primitives, shamir
from fleet.secure_aggregation import roster as rosters
from fleet.secure_aggregation.errors import SumError
from fleet.secure_aggregation.messages import Commitments, Type
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import SummedTensor
from tests.fleet.secure_aggregation.parties import Fleet, listed, refused, roster_message


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return Fleet(tmp_path, 5)


def client_keys(fleet: Fleet, server) -> list[messages.Keys]:
    """Returns the keys in the roster."""
    roster = fleet.request(server, 0)
    return [*messages.read_roster(roster, server.session, fleet.plan, fleet.identities, "")]


def stored_fields(fleet: Fleet, server, number: int) -> dict:
    """Returns the fields that a client stores for a session."""
    return SessionFolder(fleet.folder / f"client{number}").read(server.session)[0]


# --- Clients refuse servers that request more than a sum


def test_one_secret_per_client_is_revealed(fleet):
    server = fleet.begin(at=Type.MASKED)
    fleet.stage(server, without={2})
    shares = [stored_fields(fleet, server, n)["shares"] for n in range(5)]
    fleet.stage(server)
    request = fleet.request(server, 0)
    answers = fleet.stage(server)
    for number, answer in answers.items():
        for dealer, share in enumerate(messages.read_opening(answer, 5, "opening")):
            key_share, seed_share = shares[number][dealer][:33], shares[number][dealer][33:]
            assert share == (key_share if dealer == 2 else seed_share)
    fleet.check(server, {0, 1, 3, 4})
    # Neither a restart nor other requests make a client reveal its other shares.
    assert fleet.answer(0, request) == answers[0]
    for message in (
        listed(Type.VOTES, server, []),
        listed(Type.SURVIVORS, server, fleet.ids),
    ):
        fleet.refuses(0, message, "this session is at OPENING")


def test_different_lists_of_survivors_raise(fleet):
    server = fleet.begin(at=Type.VOTE)
    one, other = fleet.ids, fleet.ids[:4]
    votes = [
        fleet.answer(n, listed(Type.SURVIVORS, server, one if n % 2 else other)) for n in range(4)
    ]
    message = listed(Type.SURVIVORS, server, other)
    fleet.refuses(1, message, "this session is at VOTE")
    mixed = listed(Type.VOTES, server, votes)
    fleet.refuses(0, mixed, "node1 signed others: the server has shown clients diff")
    equal = listed(Type.VOTES, server, votes[::2])
    fleet.refuses(0, equal, "expected 4 signatures at least, found 2")
    refused(
        lambda: server.receive(votes[0]),
        "expected the survivors that the server sent",
        fleet.ids[0],
    )


def test_different_rosters_raise(fleet):
    """Clients with different rosters cannot decrypt one another's shares."""
    server = fleet.begin(at=Type.SHARES)
    keys = client_keys(fleet, server)
    rosters = {0: keys[:4], 1: [*keys[:3], keys[4]], 2: keys[:4], 3: keys[:4], 4: keys}
    answers = {n: fleet.answer(n, roster_message(server, roster)) for n, roster in rosters.items()}
    parcels = []
    for dealer in (1, 2, 3):
        holders = [k.sender for k in rosters[dealer]]
        dealt = messages.read_shares(answers[dealer], holders, "shares")
        parcels.append((dealt.commitments[fleet.ids[0]], dealt.sealed[fleet.ids[0]]))
    message = messages.delivery_message(server.session, fleet.ids[:4], parcels)
    fleet.refuses(
        0,
        message,
        "client node1: expected shares for this client and this roster, found different ones",
        fleet.ids[1],
    )


def test_invalid_votes_raise(fleet):
    server = fleet.begin(at=Type.VOTE)
    votes = {n: fleet.answer(n, fleet.request(server, n)) for n in range(5)}
    other = primitives.digest("survivors", primitives.digest("other"), *fleet.ids)
    votes[3] = fleet.forged(3, Type.VOTE, server.session, other)
    message = listed(Type.VOTES, server, [votes[n] for n in range(5)])
    fleet.refuses(0, message, "client node3 signed others")
    stranger = messages.signed(Type.VOTE, server.session, b"\7" * 32, fleet.ids[4], bytes(32))
    for chosen, pattern in (
        ([votes[0], stranger], "expected the signature of client node4"),
        ([votes[0]] * 5, "every client once"),
        ([votes[1], votes[0]], "every client once"),
    ):
        message = listed(Type.VOTES, server, chosen)
        fleet.refuses(0, message, pattern)


def test_client_rejects_other_plans(fleet):
    tensors = (dataclasses.replace(fleet.tensors[0], modulus=1 << 13), *fleet.tensors[1:])
    looser = dataclasses.replace(fleet.tensors[0], bound=1 << 17)
    for other in (
        dataclasses.replace(fleet.plan, tensors=tensors),
        dataclasses.replace(fleet.plan, tensors=(looser, *fleet.tensors[1:])),
        dataclasses.replace(fleet.plan, max_clients=6),
        dataclasses.replace(fleet.plan, min_clients=4),
        dataclasses.replace(fleet.plan, plan=b"\1" * 32),
    ):
        message = messages.begin_message(b"\1" * 32, other.digest())
        fleet.refuses(0, message, "plan, limits or moduli differ")
    server = fleet.begin(at=Type.MASKED)
    answer = fleet.answer(0, fleet.request(server, 0))
    assert len(answer) == 7 + 2 + 32 + 32 - 1 + fleet.plan.packed_bytes + 64


def test_repeated_session_raises(fleet):
    server = fleet.begin()
    requests = []
    while server.stage:
        requests.append(fleet.request(server, 0))
        fleet.stage(server)
    for message in requests[:-1]:
        fleet.refuses(0, message, "session .*: expected")
    refused(lambda: fleet.begin(server.session), "expected a new session, found one that has begun")
    again = messages.begin_message(server.session, fleet.plan.digest())
    fleet.refuses(0, again, "expected a new session, found BEGIN of a session that has begun")
    # A client does not start an unknown session at a later stage.
    for message in requests[1:]:
        strange = message.replace(server.session, b"\2" * 32)
        fleet.refuses(0, strange, "expected a session that has begun, found")


def test_skipped_stages_raise(fleet):
    server = fleet.begin(at=Type.SHARES)
    for message in (
        messages.delivery_message(server.session, fleet.ids, []),
        listed(Type.SURVIVORS, server, fleet.ids),
        listed(Type.VOTES, server, []),
        fleet.forged(0, Type.VOTE, server.session, bytes(32)),
    ):
        fleet.refuses(0, message, "session .*: expected")


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda keys: keys[1:], "expected this client's keys in the roster"),
        (lambda keys: keys[:2], "expected at least 3 clients, found 2"),
        (lambda keys: [keys[0], *keys[:4]], "every client once"),
        (lambda keys: keys[::-1], "every client once"),
    ],
)
def test_invalid_rosters_raise(fleet, change, pattern):
    server = fleet.begin(at=Type.SHARES)
    message = roster_message(server, change(client_keys(fleet, server)))
    fleet.refuses(0, message, pattern)
    fleet.finish(server, range(5))


def test_forged_client_keys_raise(fleet):
    server = fleet.begin(at=Type.SHARES)
    keys = client_keys(fleet, server)
    body = messages.keys_body(fleet.plan.digest(), keys[0].masking, keys[0].sealing)

    def with_last(message):
        members = [*(k.message for k in keys[:4]), message]
        members.sort(key=lambda m: m[messages.SENDER])
        entries = [messages.read_keys(m, "") for m in members]
        return roster_message(server, entries)

    secret = b"\7" * 32
    stranger = primitives.identity_public(secret)
    foreign = messages.signed(Type.KEYS, server.session, secret, stranger, body)
    fleet.refuses(0, with_last(foreign), "expected a client with a known identity")
    unsigned = messages.signed(Type.KEYS, server.session, secret, fleet.ids[4], body)
    fleet.refuses(0, with_last(unsigned), "expected the signature of client node4")
    old = fleet.forged(4, Type.KEYS, b"\1" * 32, body)
    fleet.refuses(0, with_last(old), "expected KEYS of session")
    copied = fleet.forged(4, Type.KEYS, server.session, body)
    fleet.refuses(0, with_last(copied), "node4 has another client's", fleet.ids[4])
    mine = messages.keys_body(fleet.plan.digest(), bytes([9]) * 32, bytes([8]) * 32)
    replaced = [messages.read_keys(fleet.forged(0, Type.KEYS, server.session, mine), ""), *keys[1:]]
    message = roster_message(server, replaced)
    fleet.refuses(0, message, "expected this client's keys in the roster, found none")
    other = fleet.forged(
        4, Type.KEYS, server.session, messages.keys_body(bytes(32), b"\1" * 32, b"\2" * 32)
    )
    fleet.refuses(0, with_last(other), "plan, limits or moduli differ", fleet.ids[4])


# Curve points of small order (RFC 7748, section 6.1).
WEAK = [
    bytes(32),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
]
LIAR = b"\x11" * 32


@pytest.mark.parametrize(("weak", "which"), [(WEAK[0], 0), (WEAK[1], 1)])
def test_weak_keys_raise(fleet, weak, which):
    server = fleet.begin()
    public = [primitives.exchange_public(LIAR), primitives.exchange_public(b"\x12" * 32)]
    public[which] = weak
    body = messages.keys_body(fleet.plan.digest(), *public)
    message = fleet.forged(4, Type.KEYS, server.session, body)
    refused(lambda: server.receive(message), "client node4: expected a key of X25519", fleet.ids[4])
    # Even if the server accepts the weak key, no client uses it.
    answers = [fleet.answer(number, fleet.request(server, number)) for number in range(4)]
    roster = [messages.read_keys(answer, "") for answer in (*answers, message)]
    request = roster_message(server, roster)
    if which == 0:
        fleet.refuses(0, request, "found a weak one", fleet.ids[4])
        return
    answers = {n: fleet.answer(n, request) for n in range(4)}
    members = rosters.Roster(server.session, roster)
    shares = bytes(66)
    bound = members.share_commitments(fleet.ids[4], fleet.ids[0], shares)
    agreed = primitives.agree(LIAR, roster[0].sealing)
    key = primitives.derive_key(agreed, members.digest, b"shares" + fleet.ids[4] + fleet.ids[0])
    parcels = []
    for dealer in range(1, 4):
        dealt = messages.read_shares(answers[dealer], fleet.ids, "")
        parcels.append((dealt.commitments[fleet.ids[0]], dealt.sealed[fleet.ids[0]]))
    parcels.append((bound, primitives.seal(key, shares, bound.key + bound.seed)))
    message = messages.delivery_message(server.session, fleet.ids, parcels)
    fleet.refuses(0, message, "found a weak one", fleet.ids[4])


def test_invalid_lists_of_clients_raise(fleet):
    server = fleet.begin(at=Type.MASKED)
    delivery = messages.read_delivery(fleet.request(server, 0), fleet.plan, "")

    def delivered(sharers, parcels=delivery.parcels):
        return lambda: fleet.answer(0, messages.delivery_message(server.session, sharers, parcels))

    refused(delivered(fleet.ids[:3], delivery.parcels[:2]), "expected at least 4 of 5 clients")
    refused(delivered(fleet.ids[1:]), "expected this client in the list of clients who sent shares")
    refused(delivered([*fleet.ids[:4], b"\xff" * 32]), "found of the unknown key ffffffff")
    refused(delivered(fleet.ids, delivery.parcels[:3]), "found 5 clients and 4 shares")
    swapped = (delivery.parcels[1], delivery.parcels[0], *delivery.parcels[2:])
    refused(delivered(fleet.ids, swapped), "node1: expected shares for this client", fleet.ids[1])
    changed = (Commitments(bytes(32), delivery.parcels[0][0].seed), delivery.parcels[0][1])
    refused(
        delivered(fleet.ids, (changed, *delivery.parcels[1:])), "the dealer or the server violates"
    )
    fleet.stage(server)
    for survivors, pattern in (
        (fleet.ids[:3], "expected at least 4 of 5 clients"),
        (fleet.ids[1:], "expected this client"),
        ([*fleet.ids[:4], b"\xff" * 32], "expected clients of the previous list"),
        ([fleet.ids[1], fleet.ids[0], *fleet.ids[2:]], "ascending"),
        ([*fleet.ids[:4], fleet.ids[3]], "every client once"),
    ):
        message = listed(Type.SURVIVORS, server, survivors)
        fleet.refuses(0, message, pattern)
    fleet.finish(server, range(5))


# --- Dishonest clients


def test_wrong_share_raises(fleet):
    server = fleet.begin(at=Type.MASKED)
    fleet.stage(server, without={4})
    fleet.stage(server)
    honest = {n: fleet.answer(n, fleet.request(server, n)) for n in range(4)}
    opened = list(messages.read_opening(honest[1], 5, ""))
    for dealer, name in ((0, "node0"), (4, "node4")):
        wrong = list(opened)
        wrong[dealer] = shamir.split(b"x" * 32, 1, [1])[1]
        message = fleet.forged(1, Type.OPENING, server.session, messages.listed(wrong))
        pattern = f"OPENING of client node1: expected the share that client {name} gave it"
        refused(lambda m=message: server.receive(m), pattern, fleet.ids[1])
    beyond = [shamir.PRIME.to_bytes(33, "big"), *opened[1:]]
    message = fleet.forged(1, Type.OPENING, server.session, messages.listed(beyond))
    refused(lambda: server.receive(message), "found a different one", fleet.ids[1])
    message = fleet.forged(1, Type.OPENING, server.session, messages.listed(opened[:4]))
    refused(lambda: server.receive(message), "expected shares of 5 clients, found 4", fleet.ids[1])
    # Four of the five shares are needed.
    for number in (0, 2, 3):
        server.receive(honest[number])
    refused(server.close, "found 3 of 4; missing: node1")
    server.receive(honest[1])
    server.close()
    fleet.check(server, range(4))


def deal_shares(fleet, server, liar: int, monkeypatch, target, name: str, lie) -> None:
    """Runs the stage SHARES; one function is replaced while the liar answers."""
    for number in range(fleet.size):
        with monkeypatch.context() as patched:
            if number == liar:
                patched.setattr(target, name, lie)
            server.receive(fleet.answer(number, fleet.request(server, number)))
    server.close()


def inconsistent_shares(secret, threshold, points):
    """Returns shares of a polynomial whose degree is too high."""
    return ORIGINAL_SPLIT(secret, threshold + 1, points)


ORIGINAL_SPLIT = shamir.split


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "lie", "vanishes"),
    [
        (rosters.Roster, "seed_commitment", lambda *a: bytes(32), False),
        (shamir, "split", inconsistent_shares, False),
        (shamir, "split", inconsistent_shares, True),
        (shamir, "split", lambda secret, t, points: ORIGINAL_SPLIT(b"x" * 32, t, points), True),
    ],
)
def test_error_reports_dealer_of_wrong_secrets(tmp_path, monkeypatch, target, name, lie, vanishes):
    fleet = Fleet(tmp_path, 6)
    server = fleet.begin(at=Type.SHARES)
    deal_shares(fleet, server, 3, monkeypatch, target, name, lie)
    fleet.stage(server, without={3} if vanishes else set())
    while server.stage != Type.OPENING:
        fleet.stage(server)
    for identity, request in server.requests().items():
        server.receive(fleet.answer(fleet.ids.index(identity), request))
    secret = "key" if vanishes else "seed"
    pattern = f"client node3: expected shares of the {secret} that match its commitments"
    refused(server.close, pattern, fleet.ids[3])
    refused(server.result, "expected an unmasked sum")
    refused(fleet.resumed(server).result, "expected an unmasked sum")


def test_share_without_commitment_raises(fleet, monkeypatch):
    server = fleet.begin(at=Type.SHARES)
    honest = rosters.Roster.share_commitments

    def lie(roster, dealer, holder, shares):
        return honest(roster, dealer, holder, shares if holder != fleet.ids[2] else bytes(66))

    deal_shares(fleet, server, 0, monkeypatch, rosters.Roster, "share_commitments", lie)
    fleet.refuses(
        2,
        fleet.request(server, 2),
        "client node0: expected shares that match its commitments",
        fleet.ids[0],
    )


def test_error_reports_dealer_of_share_beyond_field(fleet, monkeypatch):
    """Without this check, the error would blame the share's holder."""
    server = fleet.begin(at=Type.SHARES)

    def lie(secret, threshold, points):
        shares = ORIGINAL_SPLIT(secret, threshold, points)
        return {**shares, points[2]: shamir.PRIME.to_bytes(33, "big")}

    deal_shares(fleet, server, 0, monkeypatch, shamir, "split", lie)
    fleet.refuses(2, fleet.request(server, 2), "client node0: exp", fleet.ids[0])
    fleet.stage(server, without={2})
    fleet.finish(server, {0, 1, 3, 4})


def test_foreign_repeated_and_late_answers_raise(fleet):
    server = fleet.begin(at=Type.SHARES)
    answers = {n: fleet.answer(n, fleet.request(server, n)) for n in range(5)}
    body = answers[1][len(messages.header(Type.SHARES, server.session)) + 32 : -64]
    posing = messages.signed(
        Type.SHARES, server.session, fleet.secrets[fleet.ids[1]], fleet.ids[0], body
    )
    refused(lambda: server.receive(posing), "expected the signature of client node0")
    server.receive(answers[0])
    second = fleet.forged(0, Type.SHARES, server.session, body)
    refused(lambda: server.receive(second), "expected one answer, found a second", fleet.ids[0])
    for number in (1, 2, 3):
        server.receive(answers[number])
    server.close()
    refused(lambda: server.receive(answers[4]), "expected MASKED of session")
    late = fleet.forged(4, Type.MASKED, server.session, bytes(fleet.plan.packed_bytes))
    refused(lambda: server.receive(late), "expected one of the asked clients")
    elsewhere = fleet.forged(1, Type.MASKED, b"\1" * 32, bytes(fleet.plan.packed_bytes))
    refused(lambda: server.receive(elsewhere), "expected MASKED of session")
    for number in range(4):
        server.receive(fleet.answer(number, fleet.request(server, number)))
    server.close()
    fleet.finish(server, range(4))
    refused(lambda: server.receive(answers[0]), "is unmasked")


def test_invalid_masked_values_raise(tmp_path):
    fleet = Fleet(tmp_path, 3, (SummedTensor("odd:0", (8,), 5, 997),))
    server = fleet.begin(at=Type.MASKED)
    for body, pattern in (
        (b"\xff" * 10, "expected numbers below their moduli"),
        (bytes(9), "expected 10 bytes more at 0, found 9"),
        (bytes(11), "expected 10 bytes, found 11"),
    ):
        message = fleet.forged(0, Type.MASKED, server.session, body)
        refused(lambda m=message: server.receive(m), pattern, fleet.ids[0])
    fleet.finish(server, range(3))


# --- Invalid messages


def test_damaged_messages_raise(tmp_path):
    """Messages are truncated, extended or changed, some with valid signatures."""
    fleet = Fleet(tmp_path, 4)
    server = fleet.begin()
    generator = random.Random(3)
    damaged_messages = 0
    while server.stage:
        request = fleet.request(server, 0)
        answers = {n: fleet.answer(n, m) for n, m in enumerate(server.requests().values()) if n}
        for message, take in (
            (request, lambda m: fleet.answer(0, m)),
            (answers[1], server.receive),
        ):
            for damaged in changes(message, generator, fleet, server):
                with pytest.raises(SumError) as error:
                    take(damaged)
                assert "\n" not in str(error.value)
                assert len(str(error.value)) < 400
                damaged_messages += 1
        for answer in answers.values():
            server.receive(answer)
        server.receive(fleet.answer(0, request))
        server.close()
    fleet.check(server, range(4))
    assert damaged_messages > 500


def changes(message: bytes, generator: random.Random, fleet: Fleet, server):
    for size in {0, 1, 5, 6, 7, 8, 39, 40, 41, 72, len(message) - 65, len(message) - 1}:
        if 0 <= size < len(message):
            yield message[:size]
    yield message + b"\0"
    yield generator.randbytes(len(message))
    for _ in range(40):
        at = generator.randrange(len(message))
        # BEGIN with another session id is valid, and starts that session.
        if message[7] == Type.BEGIN and 8 <= at < 40:
            continue
        yield (
            message[:at] + bytes([message[at] ^ (1 << generator.randrange(8))]) + message[at + 1 :]
        )
    # These messages have changed bodies, but valid signatures.
    kind = Type(message[7])
    if kind % 2 == 0:
        body = message[72:-64]
        for _ in range(8):
            at = generator.randrange(len(body))
            size = generator.choice([0, 1, 2, len(body) // 2, len(body) - 1])
            yield fleet.forged(1, kind, server.session, body[:size])
            yield fleet.forged(1, kind, server.session, body + bytes(size + 1))
            # Bodies of these three types may stay valid when their bits change.
            if kind not in (Type.MASKED, Type.SHARES, Type.KEYS):
                changed = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
                yield fleet.forged(1, kind, server.session, changed)


def test_too_long_messages_raise(fleet):
    longest = messages.longest_message(fleet.plan)
    server = fleet.begin(at=Type.SHARES)
    readers = {
        Type.ROSTER: lambda m: fleet.answer(0, m),
        Type.DELIVERY: lambda m: messages.read_delivery(m, fleet.plan, ""),
        Type.SURVIVORS: lambda m: messages.read_survivors(m, fleet.plan, ""),
        Type.VOTES: lambda m: messages.read_votes(
            m, server.session, fleet.plan, fleet.identities, ""
        ),
    }
    tracemalloc.start()
    try:
        fleet.refuses(0, bytes(longest + 1), f"expected at most {longest} bytes")
        for kind in readers:
            message = messages.header(kind, server.session) + b"\xff\xff" + bytes(100)
            pattern = "expected at most 5 items of .* found 65535 and 100 bytes"
            refused(lambda m=message, k=kind: readers[k](m), pattern)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * longest + 1_000_000
    for wrong in (None, "text", bytearray(50), np.zeros(3)):
        fleet.refuses(0, wrong, "expected a message of bytes")
    version = messages.header(Type.BEGIN, server.session)
    later = version[:6] + b"\2" + version[7:] + bytes(32)
    fleet.refuses(0, later, "expected version 1 of the protocol, found 2: install")


@pytest.mark.slow
def test_length_limit_fits_every_message(tmp_path):
    for size, tensors in ((3, ()), (9, ()), (4, (SummedTensor("s:0", (999,), 1, 1 << 64),))):
        fleet = Fleet(tmp_path / f"{size} {len(tensors)}", size, tensors or Fleet.tensors)
        server = fleet.begin()
        while server.stage:
            sent = [*server.requests().values()]
            longest = max(map(len, [*sent, *fleet.stage(server).values()]))
            assert longest <= messages.longest_message(fleet.plan)
