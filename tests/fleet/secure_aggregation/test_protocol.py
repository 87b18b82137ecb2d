"""Sessions of honest parties: sums, clients that vanish, restarts, and what the server sees."""

from __future__ import annotations

import ast
import dataclasses
import errno
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from fleet.secure_aggregation import masks, messages, primitives
from fleet.secure_aggregation import roster as rosters
from fleet.secure_aggregation.errors import ProtocolError, SumError
from fleet.secure_aggregation.messages import Type
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import (
    Identities,
    SummedTensor,
    SumPlan,
)
from tests.fleet.secure_aggregation import parties
from tests.fleet.secure_aggregation.parties import Fleet

STAGES = [Type.KEYS, Type.SHARES, Type.MASKED, Type.VOTE, Type.OPENING]


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# --- sums


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("size", [3, 4, 10])
def test_sums_are_those_in_the_clear(tmp_path, size, checks):
    fleet = Fleet(tmp_path, size, checks_survivors=checks, seed=size)
    server = fleet.begin()
    fleet.play(server)
    fleet.check(server, range(size))
    assert server.requests() == {}
    # As often as the process ends: clients open it again with the same bytes.
    resumed = fleet.resumed(server)
    fleet.play(resumed)
    fleet.check(resumed, range(size))


@pytest.mark.parametrize(
    ("bound", "modulus"),
    [
        (2, 2),
        (1, 1),
        (1 << 31, 1 << 32),
        (1 << 32, 1 << 32),
        (997, 997),
        (1 << 60, 1 << 62),
        ((1 << 62) - 57, (1 << 62) - 57),
        (1 << 63, (1 << 63) + 9),
        ((1 << 64) - 59, (1 << 64) - 59),
        ((1 << 64) - 1, 1 << 64),
    ],
)
def test_sums_are_exact_in_every_modulus(tmp_path, bound, modulus):
    fleet = Fleet(tmp_path, 4, (SummedTensor("sum:0", (70,), bound, modulus),))
    for values in fleet.values:
        values["sum:0"][:2] = (0, bound - 1)
    server = fleet.begin()
    fleet.stage(server)
    fleet.stage(server)
    fleet.play(server)
    fleet.check(server)


def test_sums_are_those_of_plans_played_in_the_clear(tmp_path):
    """Of the side channels of a plan: bit for bit, in as many bytes."""
    from plan_runner.export import TensorType
    from plan_runner.secure import Modulus, SecureSum, SecureTensor

    clients = 5
    schemes = [
        Modulus(1 << 12, grows=True),
        Modulus(1000, grows=True),
        Modulus(997, grows=False),
        Modulus((1 << 62) - 57, grows=False),
    ]
    tensors = [
        SecureTensor(f"{n}:0", TensorType("int64", (2, 3)), scheme, f"fed{n}:0")
        for n, scheme in enumerate(schemes)
    ]
    summed = tuple(
        SummedTensor(t.name, (2, 3), t.modulus.bound, t.modulus.of(clients)) for t in tensors
    )
    fleet = Fleet(tmp_path, clients, summed)
    for values in fleet.values:
        values.update({name: value.astype(np.int64) for name, value in values.items()})
    server = fleet.begin()
    fleet.play(server)
    for tensor, part in zip(tensors, summed):
        clear = SecureSum(tensor, clients)
        for number, values in enumerate(fleet.values):
            clear.add(values[tensor.name], f"client {number}")
        result = server.result()[tensor.name].astype(np.int64)
        np.testing.assert_array_equal(result, clear.result())
        assert part.packed_bytes == clear.bytes_up


# --- clients that vanish


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_clients_may_vanish_down_to_the_threshold_and_no_further(tmp_path, stage, checks):
    if stage == Type.VOTE and not checks:
        return
    fleet = Fleet(tmp_path, 7, checks_survivors=checks, seed=int(stage))
    server = fleet.begin()
    fleet.play(server, until=stage)
    # More than two thirds, or half, of those whose keys are in the roster.
    fewest = {True: 5, False: 4}[checks] if stage != Type.KEYS else 3
    assert server.fewest == fewest
    staying = set(random.Random(stage).sample(range(7), fewest))
    requests = {fleet.ids.index(identity): r for identity, r in server.requests().items()}
    for number in sorted(staying)[1:]:
        server.receive(fleet.answer(number, requests[number]))
    with pytest.raises(
        ProtocolError, match=rf"expected {stage.name} of at least {fewest} clients, "
    ):
        server.close()
    with pytest.raises(SumError, match="expected an opened sum"):
        server.result()
    server.receive(fleet.answer(min(staying), requests[min(staying)]))
    assert {fleet.ids.index(identity) for identity in server.missing} == set(range(7)) - staying
    server.close()
    fleet.play(server)
    # After the masked values, who is gone is in the sum all the same.
    in_sum = staying if stage <= Type.MASKED else range(7)
    fleet.check(server, in_sum)


def test_clients_refuse_to_open_below_the_threshold(tmp_path):
    for checks, too_few in ((True, 3), (False, 2)):
        fleet = Fleet(tmp_path / str(checks), 5, checks_survivors=checks)
        server = fleet.begin()
        fleet.play(server, until=Type.VOTE if checks else Type.OPENING)
        message = messages.survivors_message(server.session, fleet.ids[:too_few])
        with pytest.raises(ProtocolError) as error:
            fleet.answer(0, message)
        assert f"expected at least {too_few + 1} of 5 clients" in one_line(error) or not checks


def test_a_cohort_of_fewer_than_three_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 3)
    for size in (1, 2):
        with pytest.raises(SumError, match="expected 3 to 3 clients"):
            fleet.ids, all_ids = fleet.ids[:size], fleet.ids
            fleet.begin()
        fleet.ids = all_ids
    with pytest.raises(SumError, match="expected 3 <= min_clients"):
        SumPlan(bytes(32), fleet.tensors, 5, 2)


# --- restarts


@pytest.mark.parametrize("lost", STAGES)
def test_a_lost_answer_comes_again_and_nothing_else(tmp_path, lost):
    """The process ends after its state was written and before the answer was sent."""
    fleet = Fleet(tmp_path, 4, seed=9)
    server = fleet.begin()
    fleet.play(server, until=lost)
    first = {n: fleet.answer(n, fleet.request(server, n)) for n in range(4)}
    server = fleet.resumed(server)
    # Other values, as of noise drawn again, are not a second answer.
    requests = server.requests()
    for number, identity in enumerate(fleet.ids):
        again = fleet.client(number).answer(requests[identity], lambda: {})
        assert again == first[number]
        assert server.receive(again) == server.receive(first[number]) == identity
    server.close()
    server = fleet.resumed(server) if server.stage else server
    fleet.play(server)
    fleet.check(server)


def test_nothing_goes_out_that_is_not_on_the_disk(tmp_path, monkeypatch):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin()
    fleet.play(server, until=Type.MASKED)
    request = fleet.request(server, 0)

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SumError, match="sessions in: No space left on device") as error:
            fleet.answer(0, request)
        one_line(error)
    assert not list((tmp_path / "client0").glob(".partial*"))
    fleet.play(server)
    fleet.check(server, range(3))


def test_secrets_are_the_owners_and_gone_after_the_session(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin()
    folder = tmp_path / "client0"
    secrets: set[bytes] = set()
    while server.stage:
        stage = server.stage
        fleet.stage(server)
        (path,) = folder.glob("*.session")
        assert path.stat().st_mode & 0o077 == 0 == folder.stat().st_mode & 0o077
        fields, _ = SessionFolder(folder).read(server.session)
        found = {fields[name] for name in ("sealing", "masking", "seed", "own_shares")}
        # What masks are made of is there no longer than it takes to make them.
        assert found == {b""} or stage < Type.MASKED
        secrets |= found - {b""}
        secrets |= set(fields["shares"])
    assert len(secrets) == 6
    left = path.read_bytes()
    assert not any(secret.hex().encode() in left or secret in left for secret in secrets)


def test_a_session_that_was_given_up_is_not_answered_again(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin()
    fleet.play(server, until=Type.SHARES)
    request = fleet.request(server, 0)
    fleet.answer(0, request)
    fleet.client(0).give_up(server.session)
    for message in (request, messages.begin_message(server.session, fleet.plan.digest())):
        with pytest.raises(ProtocolError) as error:
            fleet.answer(0, message)
        one_line(error)
    # Of a plan that the client no longer has, too.
    fleet.answer(1, fleet.request(server, 1))
    fleet.client(1, dataclasses.replace(fleet.plan, plan=b"\1" * 32)).give_up(server.session)
    fields, answer = SessionFolder(tmp_path / "client1").read(server.session)
    assert not any((fields["sealing"], fields["masking"], fields["seed"], answer))


def test_a_spoilt_state_is_one_line(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin()
    fleet.stage(server)
    (path,) = (tmp_path / "client0").glob("*.session")
    whole = path.read_bytes()
    for spoilt in (b"", whole[:-1], whole[:40], whole.replace(b"KEYS", b"keys") + b"x"):
        path.write_bytes(spoilt)
        with pytest.raises(SumError, match="expected the state of a session") as error:
            fleet.answer(0, fleet.request(server, 0))
        one_line(error)


def test_the_folder_of_another_client_or_plan_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin()
    fleet.stage(server)
    (tmp_path / "client0").rename(tmp_path / "away")
    (tmp_path / "client1").rename(tmp_path / "client0")
    with pytest.raises(ProtocolError, match="expected sessions of this client"):
        fleet.answer(0, fleet.request(server, 0))
    other = dataclasses.replace(fleet.plan, plan=b"\1" * 32)
    with pytest.raises(ProtocolError, match="expected the plan that it began with"):
        fleet.client(2, other).answer(fleet.request(server, 2))
    fleet.plan = other
    with pytest.raises(SumError, match="expected the plan that it began with"):
        fleet.resumed(server)


def test_two_servers_of_one_session_do_not_both_go_on(tmp_path):
    fleet = Fleet(tmp_path, 4)
    server = fleet.begin()
    other = fleet.resumed(server)
    answers = [fleet.answer(n, fleet.request(server, n)) for n in range(4)]
    for answer in answers:
        server.receive(answer)
    for answer in answers[1:]:
        other.receive(answer)
    server.close()
    with pytest.raises(SumError, match="expected one server"):
        other.close()
    fleet.play(server)
    fleet.check(server, range(4))


# --- anything that may happen, in any order


def play_at_random(fleet: Fleet, generator: random.Random) -> bool:
    """Plays a session with accidents; returns whether there was a sum, which is then right."""
    server = fleet.begin()
    gone: set[int] = set()
    vanishing = generator.choice([0.0, 0.0, 0.02, 0.1])
    while server.stage:
        gone |= {n for n in range(fleet.size) if generator.random() < vanishing}
        requests = list(server.requests().items())
        generator.shuffle(requests)
        # Messages come twice, late, not at all, and the server's process ends between them.
        arriving: list[bytes] = []
        for identity, request in requests:
            number = fleet.ids.index(identity)
            if number in gone:
                continue
            answer = fleet.answer(number, request)
            if generator.random() < 0.2:
                assert fleet.answer(number, request) == answer
            if generator.random() < 0.05:
                server = fleet.resumed(server)
                arriving = []
            arriving += [answer] * generator.choice([1, 1, 1, 2])
            if generator.random() < vanishing:
                gone.add(number)
        generator.shuffle(arriving)
        for answer in arriving:
            server.receive(answer)
        if len(set(arriving)) < server.fewest:
            with pytest.raises(ProtocolError, match=r"expected \w+ of at least"):
                server.close()
            # Who answered before the restart is asked again.
            for identity, request in requests:
                if fleet.ids.index(identity) not in gone:
                    server.receive(fleet.answer(fleet.ids.index(identity), request))
        if len(server.asked) - len(server.missing) < server.fewest:
            with pytest.raises(ProtocolError, match="missing: "):
                server.close()
            return False
        server.close()
        # An opened sum is in the memory of its process alone.
        if server.stage and generator.random() < 0.3:
            server = fleet.resumed(server)
        with pytest.raises(ProtocolError):
            server.receive(generator.choice(arriving or [b""]))
    fleet.check(server)
    return True


@pytest.mark.slow
def test_whatever_happens_the_sum_is_right_or_there_is_none(tmp_path):
    opened = 0
    for seed in range(60):
        generator = random.Random(seed)
        tensors = tuple(
            SummedTensor(f"{n}:0", (generator.randrange(1, 9),), bound, modulus)
            for n, (bound, modulus) in enumerate(
                (generator.randrange(1, m + 1), m)
                for m in generator.choices([1, 2, 97, 1 << 20, (1 << 62) - 57, 1 << 62], k=2)
            )
        )
        fleet = Fleet(
            tmp_path / str(seed),
            generator.randrange(3, 9),
            tensors,
            checks_survivors=generator.random() < 0.5,
            seed=seed,
        )
        opened += play_at_random(fleet, generator)
    assert 20 < opened < 60


def test_two_questions_at_once_get_one_answer(tmp_path):
    """Of processes that share a folder, one works and the other waits, and is refused then."""
    fleet = Fleet(tmp_path, 5)
    server = fleet.begin()
    fleet.play(server, until=Type.MASKED)
    request = fleet.request(server, 0)
    delivery = messages.read_delivery(request, fleet.plan, "")
    other = messages.delivery_message(server.session, fleet.ids[:4], delivery.parcels[:3])
    working, answered = threading.Event(), threading.Event()
    refused: list[SumError] = []

    def values():
        working.set()
        # Only a client that does not wait has answered by then.
        answered.wait(0.3)
        return fleet.values[0]

    def ask_again():
        working.wait()
        try:
            fleet.answer(0, other)
        except SumError as error:
            refused.append(error)
        answered.set()

    thread = threading.Thread(target=ask_again)
    thread.start()
    fleet.client(0).answer(request, values)
    thread.join()
    (error,) = refused
    assert "this session is at MASKED" in str(error)


# --- who exchanges secrets with whom


def test_a_sparser_graph_is_a_change_of_one_function(tmp_path, monkeypatch):
    """Each with the two before and the two after it, of nine."""

    def ring(client, roster):
        at = roster.index(client)
        return tuple(roster[(at + step) % len(roster)] for step in (-2, -1, 1, 2))

    assert rosters.neighbours(b"b", [b"a", b"b", b"c"]) == (b"a", b"c")
    fleet = Fleet(tmp_path, 9)
    monkeypatch.setattr(rosters, "neighbours", ring)
    server = fleet.begin()
    fleet.stage(server)
    answers = fleet.stage(server)
    shares = messages.read_shares(answers[0], 5, "shares")
    assert len(shares.sealed) == 4
    fleet.stage(server, without={4})
    fleet.play(server)
    fleet.check(server, set(range(9)) - {4})
    # Seven of nine are enough, but of its own five holders each needs four.
    server = fleet.begin()
    fleet.stage(server)
    fleet.stage(server, without={1, 2})
    fleet.answer(5, fleet.request(server, 5))
    with pytest.raises(ProtocolError, match="at least 4 of its 5 holders, found 3 clients"):
        fleet.answer(3, fleet.request(server, 3))


# --- what the server sees


def uniformity(values: np.ndarray, modulus: int) -> float:
    """Pearson's chi-squared of 64 bins of equal width, in standard deviations from its mean."""
    counts = np.bincount((values.astype(object) * 64 // modulus).astype(int), minlength=64)
    expected = values.size / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


@pytest.mark.parametrize("modulus", [997 * 64, 1 << 32, (1 << 61) - 1])
def test_masked_values_look_uniform_before_and_after_masks_are_opened(
    tmp_path, monkeypatch, modulus
):
    """Each of the two kinds of masks hides the values: one before the opening, one after it.

    Of a client that stays the server learns its own mask, and of one that goes those of its pairs.
    """
    parties.seeded(monkeypatch, 0)
    fleet = Fleet(tmp_path, 4, (SummedTensor("sum:0", (6400,), 50, modulus),), seed=1)
    server = fleet.begin()
    fleet.stage(server)
    fleet.stage(server)
    folders = [SessionFolder(tmp_path / f"client{n}") for n in range(4)]
    kept = [folder.read(server.session)[0] for folder in folders]
    masked = fleet.stage(server)
    roster = rosters.Roster(
        server.session, [messages.read_keys(message, "") for message in kept[0]["roster"]]
    )
    (seen,) = messages.read_masked(masked[1], fleet.plan, "")
    own = rosters.own_key(kept[1]["seed"], roster.digest, fleet.ids[1])
    pairs = [
        (
            rosters.pair_key(
                kept[1]["masking"],
                roster.keys[other].masking,
                roster.digest,
                fleet.ids[1],
                other,
            ),
            -rosters.pair_sign(fleet.ids[1], other),
        )
        for other in rosters.neighbours(fleet.ids[1], fleet.ids)
    ]
    without_own, without_pairs, bare = seen.copy(), seen.copy(), seen.copy()
    for vector, removed in (
        (without_own, [(own, -1)]),
        (without_pairs, pairs),
        (bare, [(own, -1), *pairs]),
    ):
        for key, sign in removed:
            masks.apply_mask(vector, modulus, key, 0, sign)
    for vector in (seen, without_own, without_pairs):
        assert abs(uniformity(vector, modulus)) < 4
    # The test finds out: without both, there are the values.
    assert uniformity(bare, modulus) > 100
    np.testing.assert_array_equal(bare, fleet.values[1]["sum:0"])
    # Of the total one client's own mask is enough to hide the sum, and without it nothing is.
    total = np.zeros(6400, np.uint64)
    for message in masked.values():
        masks.add_into(total, messages.read_masked(message, fleet.plan, "")[0], modulus)
    for number in range(4):
        assert abs(uniformity(total, modulus)) < 4
        own = rosters.own_key(kept[number]["seed"], roster.digest, fleet.ids[number])
        masks.apply_mask(total, modulus, own, 0, -1)
    assert uniformity(total, modulus) > 100
    np.testing.assert_array_equal(total, fleet.expected(range(4))["sum:0"])


# --- what is refused before a session begins


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.array([0, 5]), "found 5"),
        (np.array([-1, 0]), "found -1"),
        (np.array([0.0, 1.0]), "found float64"),
        (np.array([0]), r"of the shape \(1,\)"),
        (np.array([1 << 63, 0], np.uint64), f"found {1 << 63}"),
    ],
)
def test_values_beyond_their_bounds_are_not_masked(tmp_path, value, found):
    fleet = Fleet(tmp_path, 3, (SummedTensor("sum:0", (2,), 5, 16),))
    fleet.values[0]["sum:0"] = value
    server = fleet.begin()
    fleet.play(server, until=Type.MASKED)
    with pytest.raises(SumError, match=found) as error:
        fleet.answer(0, fleet.request(server, 0))
    assert one_line(error).startswith("values of this client: sum:0: expected")
    fleet.values[0] = {"other:0": value}
    with pytest.raises(SumError, match=r"expected the tensors \['sum:0'\]"):
        fleet.answer(0, fleet.request(server, 0))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"plan": b"short"}, "expected a SHA-256"),
        ({"tensors": ()}, "expected tensors"),
        ({"tensors": parties.TENSORS * 2}, "distinct names"),
        ({"max_clients": 1 << 16}, "65535"),
        ({"max_clients": 2}, "found 3 and 2"),
    ],
)
def test_plans_of_sums_that_cannot_be_are_one_line(tmp_path, fields, found):
    plan = Fleet(tmp_path).plan
    with pytest.raises(SumError, match=found) as error:
        dataclasses.replace(plan, **fields)
    one_line(error)


def test_tensors_and_identities_that_cannot_be_are_one_line():
    for bound, modulus in ((0, 5), (6, 5), (5, (1 << 64) + 1)):
        with pytest.raises(SumError, match="expected 1 <= bound <= modulus"):
            SummedTensor("sum:0", (1,), bound, modulus)
    with pytest.raises(SumError, match="expected a shape"):
        SummedTensor("sum:0", (-1,), 1, 1)
    key, other = bytes(32), b"\1" * 32
    for names in ({b"short": "a"}, {key: "two\nlines"}, {key: ""}, {key: "a", other: "a"}):
        with pytest.raises(SumError) as error:
            Identities(names)
        one_line(error)


def test_the_package_needs_no_tensorflow_and_no_transport():
    folder = Path(messages.__file__).parent
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found.add((path.name, node.module))
            elif isinstance(node, ast.Import):
                found |= {(path.name, alias.name) for alias in node.names}
    packages = ("fleet", "plan_runner", "tensorflow", "flwr")
    others = {m for _, m in found if m.split(".")[0] in packages}
    assert all(m.startswith("fleet.secure_aggregation") for m in others)
    assert {name for name, m in found if m.split(".")[0] == "cryptography"} == {"primitives.py"}
    assert not any(m in ("random", "numpy.random") for _, m in found)
    assert primitives.random_bytes(32) != primitives.random_bytes(32)


def test_opened_sum_is_on_no_disk(tmp_path):
    """Another process asks for the openings again, which are the same bytes."""
    fleet = Fleet(tmp_path)
    server = fleet.begin()
    fleet.play(server, Type.OPENING)
    before = fleet.stage(server)
    fleet.check(server)
    sums = [value.astype("<u8").tobytes() for value in server.result().values() if value.size > 1]
    sums.append(fleet.plan.pack([value.ravel() for value in server.result().values()]))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(found in path.read_bytes() for path in files for found in sums)
    other = fleet.resumed(server)
    assert other.stage == Type.OPENING
    assert fleet.stage(other) == before
    fleet.check(other)
