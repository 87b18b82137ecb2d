"""Sessions of honest parties: sums, vanished clients, restarts, and the server's view."""

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
from fleet.secure_aggregation.sum_plan import Identities, SummedTensor
from tests import golden
from tests.fleet.secure_aggregation import parties
from tests.fleet.secure_aggregation.parties import Fleet, refused

STAGES = [Type.KEYS, Type.SHARES, Type.MASKED, Type.VOTE, Type.OPENING]


# --- sums


@pytest.mark.parametrize("size", [3, 10])
def test_sums_equal_those_in_the_clear(tmp_path, size):
    fleet = Fleet(tmp_path, size, seed=size)
    server = fleet.begin()
    fleet.finish(server, range(size))
    assert server.requests() == {}


@pytest.mark.parametrize(
    ("bound", "modulus"),
    [
        (1, 1),
        (2, 2),
        (1 << 31, 1 << 32),
        (997, 997),
        ((1 << 62) - 57, (1 << 62) - 57),
        (1 << 63, (1 << 63) + 9),
        ((1 << 64) - 59, (1 << 64) - 59),
        ((1 << 64) - 1, 1 << 64),
    ],
)
def test_sums_are_exact_in_every_modulus(tmp_path, bound, modulus):
    fleet = Fleet(tmp_path, 3, (SummedTensor("sum:0", (70,), bound, modulus),))
    for values in fleet.values:
        values["sum:0"][:2] = (0, bound - 1)
    server = fleet.begin()
    fleet.finish(server)


def test_sums_equal_plan_sums(tmp_path):
    from plan_runner.export import TensorType
    from plan_runner.profile import Sent
    from plan_runner.secure import SecureSums, SecureTensor

    clients = 5
    tensors = [
        SecureTensor(f"{n}:0", TensorType("int64", (2, 3)), modulus, f"fed{n}:0")
        for n, modulus in enumerate((1 << 12, 997, (1 << 62) - 57))
    ]
    summed = tuple(SummedTensor(t.name, (2, 3), t.modulus, t.modulus) for t in tensors)
    fleet = Fleet(tmp_path, clients, summed)
    for values in fleet.values:
        values.update({name: value.astype(np.int64) for name, value in values.items()})
    server = fleet.begin()
    fleet.play(server)
    clear = SecureSums({tensor.name: tensor for tensor in tensors})
    for number, values in enumerate(fleet.values):
        clear.add(f"{number}", Sent(values))
    for tensor, part in zip(tensors, summed):
        result = server.result()[tensor.name].astype(np.int64)
        np.testing.assert_array_equal(result, clear.results()[tensor.name])
        assert part.packed_bytes == tensor.packed_bytes


# --- clients that vanish


@pytest.mark.parametrize("stage", STAGES)
def test_clients_may_vanish_down_to_the_threshold(tmp_path, stage):
    fleet = Fleet(tmp_path, 7, seed=int(stage))
    server = fleet.begin(at=stage)
    # More than two thirds of the clients in the roster.
    minimum = 5 if stage != Type.KEYS else 3
    assert server.min_answers == minimum
    staying = set(random.Random(stage).sample(range(7), minimum))
    requests = {fleet.ids.index(identity): r for identity, r in server.requests().items()}
    for number in sorted(staying)[1:]:
        server.receive(fleet.answer(number, requests[number]))
    refused(server.close, rf"expected {stage.name} of at least {minimum} clients, ")
    refused(server.result, "expected an opened sum")
    server.receive(fleet.answer(min(staying), requests[min(staying)]))
    assert {fleet.ids.index(identity) for identity in server.missing} == set(range(7)) - staying
    server.close()
    fleet.play(server)
    # A client that vanishes after its masked values is in the sum.
    fleet.check(server, staying if stage <= Type.MASKED else range(7))


def test_small_cohort_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 3)
    fleet.ids = fleet.ids[:2]
    refused(fleet.begin, "expected 3 to 3 clients, found 2")


# --- restarts


@pytest.mark.parametrize("lost", STAGES)
def test_lost_answer_is_repeated_with_equal_bytes(tmp_path, lost):
    fleet = Fleet(tmp_path, 4, seed=9)
    server = fleet.begin(at=lost)
    first = {n: fleet.answer(n, fleet.request(server, n)) for n in range(4)}
    server = fleet.resumed(server)
    # Other values, such as new noise, do not change the answer.
    requests = server.requests()
    for number, identity in enumerate(fleet.ids):
        again = fleet.client(number).answer(requests[identity], lambda: {})
        assert again == first[number]
        assert server.receive(again) == server.receive(first[number]) == identity
    server.close()
    server = fleet.resumed(server) if server.stage else server
    fleet.finish(server)


def test_full_disk_sends_no_answer(tmp_path, monkeypatch):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.MASKED)
    request = fleet.request(server, 0)

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        fleet.refuses(0, request, "sessions in: No space left on device")
    assert not list((tmp_path / "client0").glob(".partial*"))
    fleet.finish(server, range(3))


def test_secrets_are_erased_after_the_session(tmp_path):
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
        current = {fields[name] for name in ("sealing", "masking", "seed", "own_shares")}
        assert current == {b""} or stage < Type.MASKED
        secrets |= current - {b""} | set(fields["shares"])
    assert len(secrets) == 6
    left = path.read_bytes()
    assert not any(secret.hex().encode() in left or secret in left for secret in secrets)


def test_abandoned_session_is_not_answered(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.SHARES)
    request = fleet.request(server, 0)
    fleet.answer(0, request)
    fleet.client(0).give_up(server.session)
    for message in (request, messages.begin_message(server.session, fleet.plan.digest())):
        fleet.refuses(0, message, "session .*: expected")
    # A client with a different plan can erase the session, too.
    fleet.answer(1, fleet.request(server, 1))
    fleet.client(1, dataclasses.replace(fleet.plan, plan=b"\1" * 32)).give_up(server.session)
    fields, answer = SessionFolder(tmp_path / "client1").read(server.session)
    assert not any((fields["sealing"], fields["masking"], fields["seed"], answer))


def test_damaged_state_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.SHARES)
    (path,) = (tmp_path / "client0").glob("*.session")
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content[:40], content + b"x"):
        path.write_bytes(damaged)
        fleet.refuses(0, fleet.request(server, 0), "expected the state of a session")


def test_another_clients_folder_or_plan_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.SHARES)
    (tmp_path / "client0").rename(tmp_path / "away")
    (tmp_path / "client1").rename(tmp_path / "client0")
    request = fleet.request(server, 0)
    fleet.refuses(0, request, "expected sessions of this client")
    other = dataclasses.replace(fleet.plan, plan=b"\1" * 32)
    pattern = "expected the plan that it began with"
    refused(lambda: fleet.client(2, other).answer(fleet.request(server, 2)), pattern)
    fleet.plan = other
    refused(lambda: fleet.resumed(server), pattern)


def test_second_server_in_a_session_is_refused(tmp_path):
    fleet = Fleet(tmp_path, 4)
    server = fleet.begin()
    other = fleet.resumed(server)
    answers = [fleet.answer(n, fleet.request(server, n)) for n in range(4)]
    for answer in answers:
        server.receive(answer)
        other.receive(answer)
    server.close()
    refused(other.close, "expected one server")
    fleet.finish(server, range(4))


# --- random accidents


def play_at_random(fleet: Fleet, generator: random.Random) -> bool:
    """Plays a session with accidents; returns whether there was a sum, after a check of it."""
    server = fleet.begin()
    gone: set[int] = set()
    vanishing = generator.choice([0.0, 0.0, 0.02, 0.1])
    while server.stage:
        gone |= {n for n in range(fleet.size) if generator.random() < vanishing}
        requests = list(server.requests().items())
        generator.shuffle(requests)
        # Messages come twice, late or never, and the server restarts between them.
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
        if len(set(arriving)) < server.min_answers:
            refused(server.close, r"expected \w+ of at least")
            # The server asks again for answers from before its restart.
            for identity, request in requests:
                if fleet.ids.index(identity) not in gone:
                    server.receive(fleet.answer(fleet.ids.index(identity), request))
        if len(server.asked) - len(server.missing) < server.min_answers:
            refused(server.close, "missing: ")
            return False
        server.close()
        if server.stage and generator.random() < 0.3:
            server = fleet.resumed(server)
        with pytest.raises(ProtocolError):
            server.receive(generator.choice(arriving or [b""]))
    fleet.check(server)
    return True


@pytest.mark.slow
def test_random_accidents_lead_to_no_wrong_sum(tmp_path):
    opened = 0
    for seed in range(40):
        generator = random.Random(seed)
        tensors = tuple(
            SummedTensor(f"{n}:0", (generator.randrange(1, 9),), bound, modulus)
            for n, (bound, modulus) in enumerate(
                (generator.randrange(1, m + 1), m)
                for m in generator.choices([1, 2, 97, 1 << 20, (1 << 62) - 57, 1 << 62], k=2)
            )
        )
        fleet = Fleet(tmp_path / str(seed), generator.randrange(3, 9), tensors, seed=seed)
        opened += play_at_random(fleet, generator)
    assert 10 < opened < 40


def test_simultaneous_requests_get_one_answer(tmp_path):
    """One process that shares the folder works, the other waits and is refused."""
    fleet = Fleet(tmp_path, 5)
    server = fleet.begin(at=Type.MASKED)
    request = fleet.request(server, 0)
    delivery = messages.read_delivery(request, fleet.plan, "")
    other = messages.delivery_message(server.session, fleet.ids[:4], delivery.parcels[:3])
    working, answered = threading.Event(), threading.Event()
    errors: list[SumError] = []

    def values():
        working.set()
        # Only a client without a lock would answer within this time.
        answered.wait(0.3)
        return fleet.values[0]

    def ask_again():
        working.wait()
        try:
            fleet.answer(0, other)
        except SumError as error:
            errors.append(error)
        answered.set()

    thread = threading.Thread(target=ask_again)
    thread.start()
    fleet.client(0).answer(request, values)
    thread.join()
    (error,) = errors
    assert "this session is at MASKED" in str(error)


# --- neighbours


def test_neighbours_may_form_a_ring(tmp_path, monkeypatch):
    """Each client has four of nine clients as neighbours."""

    def ring(client, roster):
        at = roster.index(client)
        return tuple(roster[(at + step) % len(roster)] for step in (-2, -1, 1, 2))

    assert rosters.neighbours(b"b", [b"a", b"b", b"c"]) == (b"a", b"c")
    fleet = Fleet(tmp_path, 9)
    monkeypatch.setattr(rosters, "neighbours", ring)
    server = fleet.begin(at=Type.SHARES)
    answers = fleet.stage(server)
    assert len(messages.read_shares(answers[0], fleet.ids[:5], "shares").sealed) == 4
    fleet.stage(server, without={4})
    fleet.finish(server, set(range(9)) - {4})
    # Seven of nine are enough, but each client needs four of its own five holders.
    server = fleet.begin(at=Type.SHARES)
    fleet.stage(server, without={1, 2})
    fleet.answer(5, fleet.request(server, 5))
    pattern = "at least 4 of its 5 holders, found 3 clients"
    fleet.refuses(3, fleet.request(server, 3), pattern)


# --- the server's view


def uniformity(values: np.ndarray, modulus: int) -> float:
    """Pearson's chi-squared of 64 bins of equal width, in standard deviations from its mean."""
    counts = np.bincount((values.astype(object) * 64 // modulus).astype(int), minlength=64)
    expected = values.size / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


@pytest.mark.parametrize("modulus", [997 * 64, (1 << 61) - 1])
def test_masked_values_look_uniform(tmp_path, monkeypatch, modulus):
    """A client's values are hidden by its self mask, and also by its pairwise masks."""
    parties.seeded(monkeypatch, 0)
    fleet = Fleet(tmp_path, 4, (SummedTensor("sum:0", (6400,), 50, modulus),), seed=1)
    server = fleet.begin(at=Type.MASKED)
    kept = [SessionFolder(tmp_path / f"client{n}").read(server.session)[0] for n in range(4)]
    masked = fleet.stage(server)
    keys = [messages.read_keys(message, "") for message in kept[0]["roster"]]
    roster = rosters.Roster(server.session, keys)

    def seed_mask(number):
        return roster.own_key(kept[number]["seed"], fleet.ids[number]), -1

    def pair_mask(other):
        client = fleet.ids[1]
        key = roster.pair_key(kept[1]["masking"], client, other)
        return key, -rosters.pair_sign(client, other)

    (seen,) = messages.read_masked(masked[1], fleet.plan, "")
    pairs = [pair_mask(other) for other in rosters.neighbours(fleet.ids[1], fleet.ids)]
    for removed in ([], [seed_mask(1)], pairs, [seed_mask(1), *pairs]):
        vector = seen.copy()
        for key, sign in removed:
            masks.apply_mask(vector, modulus, key, 0, sign)
        if len(removed) <= len(pairs):
            assert abs(uniformity(vector, modulus)) < 4
    assert uniformity(vector, modulus) > 100
    np.testing.assert_array_equal(vector, fleet.values[1]["sum:0"])
    # A single client's own mask hides the total.
    total = np.zeros(6400, np.uint64)
    for message in masked.values():
        masks.add_into(total, messages.read_masked(message, fleet.plan, "")[0], modulus)
    for number in range(4):
        assert abs(uniformity(total, modulus)) < 4
        masks.apply_mask(total, modulus, *seed_mask(number)[:1], 0, -1)
    np.testing.assert_array_equal(total, fleet.expected(range(4))["sum:0"])


# --- invalid values and plans


@golden.values
def test_invalid_values_are_not_masked(tmp_path, case):
    plan = Fleet(tmp_path, 3, (SummedTensor("sum:0", (2,), 5, 16),)).plan
    return refused(lambda: plan.check_values(case, "values"))


@golden.values
def test_invalid_sum_plans_are_refused(tmp_path, case):
    plan = Fleet(tmp_path).plan
    fields = {"tensors": plan.tensors * case.pop("copies", 1), **case}
    return refused(lambda: dataclasses.replace(plan, **fields))


@golden.values
def test_invalid_tensors_are_refused(case):
    return refused(lambda: SummedTensor("sum:0", *case))


@golden.values
def test_invalid_identities_are_refused(case):
    return refused(lambda: Identities(case))


def test_only_primitives_imports_cryptography():
    imports = set()
    for path in Path(messages.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imports.add((path.name, node.module))
            elif isinstance(node, ast.Import):
                imports |= {(path.name, alias.name) for alias in node.names}
    users = {name for name, module in imports if module.split(".")[0] == "cryptography"}
    assert users == {"primitives.py"}
    assert not any(module in ("random", "numpy.random") for _, module in imports)
    assert primitives.random_bytes(32) != primitives.random_bytes(32)


def test_unmasked_sum_is_on_no_disk(tmp_path):
    """Another process asks for the openings again; they are equal."""
    fleet = Fleet(tmp_path)
    server = fleet.begin(at=Type.OPENING)
    before = fleet.stage(server)
    fleet.check(server)
    sums = [value.astype("<u8").tobytes() for value in server.result().values() if value.size > 1]
    sums.append(fleet.plan.pack([value.ravel() for value in server.result().values()]))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(content in path.read_bytes() for path in files for content in sums)
    other = fleet.resumed(server)
    assert other.stage == Type.OPENING
    assert fleet.stage(other) == before
    fleet.check(other)
