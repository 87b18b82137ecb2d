"""Sessions of honest parties: exact sums, vanished clients, restarts, and uniform masks."""

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
from tests.fleet.secure_aggregation import parties
from tests.fleet.secure_aggregation.parties import Fleet, refused
from tests.support import golden

STAGES = [Type.KEYS, Type.SHARES, Type.MASKED, Type.VOTE, Type.OPENING]


# --- Sums


@pytest.mark.parametrize("size", [3, 10])
def test_unmasked_sums_equal_plain_sums(tmp_path, size):
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


def test_unmasked_sums_equal_run_plans_secure_sums(tmp_path):
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
    fleet.run_stages(server)
    clear = SecureSums({tensor.name: tensor for tensor in tensors})
    for number, values in enumerate(fleet.values):
        clear.add(f"{number}", Sent(values))
    for tensor, part in zip(tensors, summed):
        result = server.result()[tensor.name].astype(np.int64)
        np.testing.assert_array_equal(result, clear.results()[tensor.name])
        assert part.packed_bytes == tensor.packed_bytes


# --- Sums survive clients that vanish


@pytest.mark.parametrize("stage", STAGES)
def test_threshold_of_clients_suffices_at_each_stage(tmp_path, stage):
    fleet = Fleet(tmp_path, 7, seed=int(stage))
    server = fleet.begin(at=stage)
    # From SHARES on, more than two thirds of the clients must answer.
    minimum = 5 if stage != Type.KEYS else 3
    assert server.min_answers == minimum
    staying = set(random.Random(stage).sample(range(7), minimum))
    requests = {fleet.ids.index(identity): r for identity, r in server.requests().items()}
    for number in sorted(staying)[1:]:
        server.receive(fleet.answer(number, requests[number]))
    refused(server.close, rf"expected {stage.name} of at least {minimum} clients, ")
    refused(server.result, "expected an unmasked sum")
    server.receive(fleet.answer(min(staying), requests[min(staying)]))
    assert {fleet.ids.index(identity) for identity in server.missing} == set(range(7)) - staying
    server.close()
    fleet.run_stages(server)
    # The sum includes clients that vanish after they have sent their masked values.
    fleet.check(server, staying if stage <= Type.MASKED else range(7))


def test_small_cohort_raises(tmp_path):
    fleet = Fleet(tmp_path, 3)
    fleet.ids = fleet.ids[:2]
    refused(fleet.begin, "expected 3 to 3 clients, found 2")


# --- Clients and servers may restart


@pytest.mark.parametrize("lost", STAGES)
def test_restarted_client_repeats_identical_answers(tmp_path, lost):
    fleet = Fleet(tmp_path, 4, seed=9)
    server = fleet.begin(at=lost)
    first = {n: fleet.answer(n, fleet.request(server, n)) for n in range(4)}
    server = fleet.resumed(server)
    # Restarted clients repeat their answers even if their values differ, as with new noise.
    requests = server.requests()
    for number, identity in enumerate(fleet.ids):
        again = fleet.client(number).answer(requests[identity], lambda: {})
        assert again == first[number]
        assert server.receive(again) == server.receive(first[number]) == identity
    server.close()
    server = fleet.resumed(server) if server.stage else server
    fleet.finish(server)


def test_client_with_full_disk_does_not_answer(tmp_path, monkeypatch):
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


def test_clients_erase_secrets_after_the_session(tmp_path):
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
    content = path.read_bytes()
    assert not any(secret.hex().encode() in content or secret in content for secret in secrets)


def test_client_does_not_answer_abandoned_session(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.SHARES)
    request = fleet.request(server, 0)
    fleet.answer(0, request)
    fleet.client(0).give_up(server.session)
    for message in (request, messages.begin_message(server.session, fleet.plan.digest())):
        fleet.refuses(0, message, "session .*: expected")
    # Even a client that has another plan by now can erase the session.
    fleet.answer(1, fleet.request(server, 1))
    fleet.client(1, dataclasses.replace(fleet.plan, plan=b"\1" * 32)).give_up(server.session)
    fields, answer = SessionFolder(tmp_path / "client1").read(server.session)
    assert not any((fields["sealing"], fields["masking"], fields["seed"], answer))


def test_damaged_session_state_raises(tmp_path):
    fleet = Fleet(tmp_path, 3)
    server = fleet.begin(at=Type.SHARES)
    (path,) = (tmp_path / "client0").glob("*.session")
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content[:40], content + b"x"):
        path.write_bytes(damaged)
        fleet.refuses(0, fleet.request(server, 0), "expected the state of a session")


def test_state_of_another_client_or_plan_raises(tmp_path):
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


def test_second_server_in_a_session_raises(tmp_path):
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


# --- Random accidents


def run_with_accidents(fleet: Fleet, generator: random.Random) -> bool:
    """Runs a session with accidents and checks its sum; returns whether there was a sum."""
    server = fleet.begin()
    gone: set[int] = set()
    vanishing = generator.choice([0.0, 0.0, 0.02, 0.1])
    while server.stage:
        gone |= {n for n in range(fleet.size) if generator.random() < vanishing}
        requests = list(server.requests().items())
        generator.shuffle(requests)
        # Messages arrive twice, late or never, and the server restarts in between.
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
            # The server repeats requests whose answers it lost in a restart.
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
def test_random_accidents_give_correct_sums_or_none(tmp_path):
    num_sums = 0
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
        num_sums += run_with_accidents(fleet, generator)
    assert 10 < num_sums < 40


def test_simultaneous_requests_give_one_answer(tmp_path):
    """The second process with the same folder waits for the first one, then raises."""
    fleet = Fleet(tmp_path, 5)
    server = fleet.begin(at=Type.MASKED)
    request = fleet.request(server, 0)
    delivery = messages.read_delivery(request, fleet.plan, "")
    other = messages.delivery_message(server.session, fleet.ids[:4], delivery.parcels[:3])
    working, answered = threading.Event(), threading.Event()
    errors: list[SumError] = []

    def values():
        working.set()
        # Without a lock, the other client would answer during this time.
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


# --- Neighbours


def test_sums_are_exact_with_four_neighbours(tmp_path, monkeypatch):
    """Each of nine clients has four neighbours."""

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
    # Seven of nine clients suffice, but each client also needs four of its five share holders.
    server = fleet.begin(at=Type.SHARES)
    fleet.stage(server, without={1, 2})
    fleet.answer(5, fleet.request(server, 5))
    pattern = "at least 4 of its 5 holders, found 3 clients"
    fleet.refuses(3, fleet.request(server, 3), pattern)


# --- The server receives masked values, which look random


def uniformity(values: np.ndarray, modulus: int) -> float:
    """Returns Pearson's chi-squared statistic of 64 bins, standardised."""
    counts = np.bincount((values.astype(object) * 64 // modulus).astype(int), minlength=64)
    expected = values.size / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


@pytest.mark.parametrize("modulus", [997 * 64, (1 << 61) - 1])
def test_masked_values_are_uniform(tmp_path, monkeypatch, modulus):
    """Either a client's self mask or its pairwise masks suffice to hide its values."""
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
    # The total is hidden until the self masks of all clients are removed.
    total = np.zeros(6400, np.uint64)
    for message in masked.values():
        masks.add_into(total, messages.read_masked(message, fleet.plan, "")[0], modulus)
    for number in range(4):
        assert abs(uniformity(total, modulus)) < 4
        masks.apply_mask(total, modulus, *seed_mask(number)[:1], 0, -1)
    np.testing.assert_array_equal(total, fleet.expected(range(4))["sum:0"])


# --- Invalid values and plans raise errors


@golden.values
def test_invalid_values_raise(tmp_path, case):
    plan = Fleet(tmp_path, 3, (SummedTensor("sum:0", (2,), 5, 16),)).plan
    return refused(lambda: plan.check_values(case, "values"))


@golden.values
def test_invalid_sum_plans_raise(tmp_path, case):
    plan = Fleet(tmp_path).plan
    fields = {"tensors": plan.tensors * case.pop("copies", 1), **case}
    return refused(lambda: dataclasses.replace(plan, **fields))


@golden.values
def test_invalid_tensors_raise(case):
    return refused(lambda: SummedTensor("sum:0", *case))


@golden.values
def test_invalid_identities_raise(case):
    return refused(lambda: Identities(case))


def test_only_one_module_imports_cryptography():
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


def test_no_file_contains_the_unmasked_sum(tmp_path):
    """A restarted server requests the shares again, and the answers are equal."""
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
