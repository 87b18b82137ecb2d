"""Noise of nodes: its exact distribution, norm bounds of clients, and privacy accounts."""

import dataclasses
import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from fleet.node_noise.account import NodeAccount, UnmaskedSums
from fleet.node_noise.noise import NodeNoise, NoisedGroup, PrivacyRequirements, parse_node_noise
from fleet.node_noise.server_noise import parse_server_noise
from fleet.node_noise.skellam import drawn, fresh_words, skellam, thresholds
from fleet.secure_aggregation.messages import Type
from fleet.secure_aggregation.sum_plan import SummedTensor
from plan_runner.errors import PlanError
from tests.fleet.secure_aggregation.parties import Fleet
from tests.plan_runner.refusals import refusal
from tests.support import golden

_VARIANCES = [Fraction(1, 100), Fraction(1, 3), Fraction(6), Fraction(250)]
# Number of values that the first random word's digits can have; the word's last bit is the sign.
_UNIT, _WORD = 1 << 63, 1 << 64


def _cumulative(variance: Fraction, count: int) -> list[int]:
    """Returns floor(2^127 P(|X| <= m)) for m = 0, ..., count - 1, with Bessel functions."""
    with mpmath.workdps(200):
        v = mpmath.mpf(variance.numerator) / variance.denominator
        shares = [mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(count)]
        totals = [2 * mpmath.fsum(shares[: m + 1]) - shares[0] for m in range(count)]
        return [int(mpmath.floor(total * _UNIT * _WORD)) for total in totals]


@pytest.mark.parametrize("variance", _VARIANCES[:3])
def test_noise_table_equals_exact_probabilities(variance):
    table = thresholds(variance)
    expected = _cumulative(variance, len(table))
    assert table.tolist() == [total // _WORD for total in expected]
    assert _UNIT * _WORD - expected[-1] < _UNIT


@pytest.mark.parametrize("size", [0, 2, 7])
def test_further_random_words_decide_ties(size):
    """The second word holds further digits of P(|X| <= m): smaller words give m, others m + 1."""
    variance = Fraction(6)
    first, second = divmod(_cumulative(variance, size + 1)[size], _WORD)
    assert first == int(thresholds(variance)[size])
    for word, expected in ((second - 1, size), (second + 1, size + 1)):
        words = iter([first << 1, word])
        result = drawn(variance, 1, lambda count, words=words: _words([next(words)]))
        assert list(result) == [expected]
    # The first word's last bit is the sign.
    words = iter([(first << 1) + 1, second - 1])
    assert list(drawn(variance, 1, lambda count: _words([next(words)]))) == [-size]
    # If the second word ties as well, a third word decides.
    words = iter([first << 1, second, 0])
    assert list(drawn(variance, 1, lambda count: _words([next(words)]))) == [size]


@pytest.mark.parametrize("variance", _VARIANCES)
def test_noise_fits_the_skellam_distribution(variance):
    size = 200_000
    result = drawn(variance, size, _seeded(5))
    expected = stats.skellam(float(variance) / 2, float(variance) / 2)
    upper = int(expected.isf(1e-3))
    values = np.arange(-upper, upper + 1)
    counts = [*(np.sum(result == value) for value in values), np.sum(np.abs(result) > upper)]
    shares = np.array([*expected.pmf(values), 2 * expected.sf(upper)])
    assert stats.chisquare(counts, size * shares / shares.sum()).pvalue > 0.01


@pytest.mark.parametrize("variance", [Fraction(84_000_000), Fraction(1, 7) + 10**10])
def test_wide_noise_is_approximately_normal(variance):
    result = drawn(variance, 20_000, _seeded(6)) / math.sqrt(variance)
    assert stats.kstest(result, "norm").pvalue > 0.01
    assert abs(np.corrcoef(result[1:], result[:-1])[0, 1]) < 0.03
    with pytest.raises(PlanError, match="expected a variance from 0 to"):
        skellam(Fraction(10) ** 12, 1)


def test_noise_differs_in_each_call():
    assert not np.any(fresh_words()(4) == fresh_words()(4))
    assert np.mean(skellam(Fraction(10**6), 1000) == skellam(Fraction(10**6), 1000)) < 0.05
    assert not skellam(Fraction(0), 5).any()


_MODULUS, _VARIANCE = 1 << 24, 40_000.0
_GROUP = NoisedGroup("update", ("a", "b"), _MODULUS, 10_000, _VARIANCE, 4003)
_NOISE = NodeNoise((_GROUP,), {"n": 1}, 3, Fraction(1), 1e-5, (1.4, 2.0, 2.5))
_TENSORS = (
    SummedTensor("a", (2, 2000), _MODULUS, _MODULUS),
    SummedTensor("b", (3,), _MODULUS, _MODULUS),
    SummedTensor("n", (), 16, 16),
)


def _client(number: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(number)
    a = generator.integers(-1, 2, (2, 2000))
    return {"a": a % _MODULUS, "b": np.array([-30, 20, number]) % _MODULUS, "n": np.array(1)}


def _centred(total: np.ndarray) -> np.ndarray:
    return (total.astype(np.int64) + _MODULUS // 2) % _MODULUS - _MODULUS // 2


def test_unmasked_sum_is_that_of_remaining_clients(tmp_path):
    """The third client vanishes after it has sent shares, and its noise is not in the sum."""
    drawn_noise = []

    def recording_skellam(variance, size):
        drawn_noise.append(skellam(variance, size))
        return drawn_noise[-1]

    clients = [_client(n) for n in range(5)]
    fleet = Fleet(tmp_path, size=5, tensors=_TENSORS, min_clients=3)
    fleet.values = [_NOISE.add_noise(client, recording_skellam) for client in clients]
    server = fleet.begin()
    while server.stage:
        fleet.stage(server, {2} if server.stage >= Type.MASKED else ())
    total = server.result()
    for k, name in enumerate(("a", "b")):
        noise = sum(drawn_noise[2 * n + k] for n in (0, 1, 3, 4)).reshape(total[name].shape)
        expected = sum(_centred(clients[n][name]) for n in (0, 1, 3, 4))
        np.testing.assert_array_equal(_centred(total[name]) - noise, expected)
        assert np.mean(noise == 0) < 0.5
    assert total["n"] == 4


def test_noise_multiplier_assumes_minimum_number_of_clients():
    """For zero-concentrated privacy, 2 rho is 1 / multiplier^2."""
    assert _NOISE.noise_multiplier == pytest.approx(math.sqrt(3 * _VARIANCE / 10_000))
    two = dataclasses.replace(_NOISE, groups=(_GROUP, _GROUP))
    assert two.noise_multiplier == pytest.approx(_NOISE.noise_multiplier / math.sqrt(2))


@pytest.mark.parametrize(
    ("most", "more"), [(77, 78), (-77, -78), (77, _MODULUS // 2), (0, -_MODULUS // 2)]
)
def test_norm_covers_all_tensors_of_a_group(most, more):
    client = {**_client(0), "a": np.full((2, 2000), 1)}
    assert 4000 + 77**2 <= 10_000 < 4000 + 78**2
    client["b"] = np.array([0, 0, most % _MODULUS])
    _NOISE.add_noise(client)
    client["b"][2] = more % _MODULUS
    with pytest.raises(PlanError, match="squares add up to at most 10000"):
        _NOISE.add_noise(client)


def test_wrong_value_without_noise_raises():
    with pytest.raises(PlanError, match="n: expected 1 of every client"):
        _NOISE.add_noise({**_client(0), "n": np.array(2)})


def test_nodes_take_part_with_the_plans_probability():
    noise = dataclasses.replace(_NOISE, takes_part=Fraction(1, 3))
    sent = [noise.add_noise(_client(0), _nothing) for _ in range(300)]
    shares = [bool(values["a"].any()) for values in sent]
    assert stats.binomtest(sum(shares), 300, 1 / 3).pvalue > 1e-4
    assert all(values["b"].any() == share for values, share in zip(sent, shares))
    assert all(values["n"] == 1 for values in sent)


def test_noise_inconsistent_with_the_plan_raises():
    _NOISE.check_plan(_TENSORS, 3)
    with pytest.raises(PlanError, match="min_clients: expected at least 3"):
        _NOISE.check_plan(_TENSORS, 2)
    with pytest.raises(PlanError, match="expected the plan's tensors"):
        _NOISE.check_plan(_TENSORS[1:], 3)
    wider = (dataclasses.replace(_TENSORS[0], modulus=2 * _MODULUS), *_TENSORS[1:])
    for size in (4002, 1):
        other = dataclasses.replace(_NOISE, groups=(dataclasses.replace(_GROUP, values=size),))
        with pytest.raises(PlanError, match=f"values: expected 4003 as in the plan, found {size}"):
            other.check_plan(_TENSORS, 3)
    with pytest.raises(PlanError, match="expected the plan's modulus"):
        _NOISE.check_plan(wider, 3)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_sums": 2}, "max_sums: expected at most 2"),
        ({"max_epsilon": 2.0, "delta": 1e-5}, "max_epsilon: expected at most 2 at delta 1e-05"),
    ],
)
def test_node_account_stops_at_limits(limits, expected, tmp_path):
    path, required = tmp_path / "sums.jsonl", PrivacyRequirements(1.0, **limits)
    required.check("privacy")
    for session in (b"1", b"2", b"2"):
        NodeAccount(path, _NOISE, required).charge(session)
    with pytest.raises(PlanError, match=expected):
        NodeAccount(path, _NOISE, required).charge(b"3")
    assert len(path.read_text().splitlines()) == 2


@golden.values
def test_invalid_privacy_requirements_raise(case):
    return refusal(PrivacyRequirements(**case).check, "privacy")


def test_node_rejects_less_noise_than_required():
    for noise, result in ((_NOISE, "found 3.4"), (None, "found a plan whose nodes add none")):
        with pytest.raises(PlanError, match=f"min_noise_multiplier: expected .*{result}"):
            PrivacyRequirements(4.0).check_noise(noise)


def test_server_account_resumes_and_stops_at_limit(tmp_path):
    path, ids = tmp_path / "account.jsonl", [bytes([n]) * 32 for n in range(5)]
    UnmaskedSums(path, _NOISE, 2.0).charge(b"first", ids[:3])
    account = UnmaskedSums(path, _NOISE, 2.0)
    assert (account.number, account.epsilon) == (1, _NOISE.epsilon(1))
    # Repeating a session does not count it again.
    account.charge(b"first", ids[:3])
    account.charge(b"second", ids[1:4])
    assert (account.number, account.epsilon) == (2, _NOISE.epsilon(2))
    # A process that is killed while it writes a line has not unmasked that line's sum.
    with open(path, "ab") as file:
        file.write(b'{"session": "ab')
    account = UnmaskedSums(path, _NOISE, 2.0)
    assert account.number == 2
    with pytest.raises(PlanError, match=r"3 sums with one client it would be 2[.]1657") as caught:
        account.charge(b"third", ids[:3])
    assert "\n" not in str(caught.value)
    # These clients have been in at most one sum each, so another sum stays within the limit.
    account.charge(b"third", [ids[0], ids[3], ids[4]])
    assert [*UnmaskedSums(path, _NOISE).spent(ids)] == [2, 2, 2, 2, 1]
    with pytest.raises(PlanError, match="noise of at least 3 clients"):
        account.charge(b"fourth", ids[3:])
    for session in (b"fifth", b"sixth"):
        with pytest.raises(PlanError, match="as in the manifest's account"):
            UnmaskedSums(path, _NOISE).charge(session, ids[:3])
            UnmaskedSums(path, _NOISE).charge(session + b"!", ids[:3])


_GROUP_ENTRY = {**dataclasses.asdict(_GROUP), "tensors": ["a", "b"]}
_DISTRIBUTED = {
    "mechanism": "distributed",
    "groups": [_GROUP_ENTRY],
    "without_noise": {"n": 1},
    "fewest_clients": 3,
    "takes_part": [2, 2],
    "delta": 1e-5,
    "epsilon_after": [1.4, 2.0, 2.5],
}
_CENTRAL = {
    "mechanism": "central",
    "groups": [{"noise_multiplier": 1.0}],
    "delta": 1e-5,
    "draw": {"scheme": "poisson", "clients": 10, "per_round": 5, "rate": 0.5, "sensitivity": 1},
    "rounds": 2,
    "guarantee_as_simulated": {"epsilon": 9.0},
}


def test_each_parser_accepts_its_mechanism_only():
    assert parse_node_noise(_manifest(_DISTRIBUTED)) == _NOISE
    assert parse_server_noise(_manifest(_CENTRAL)).claimed == 9.0
    assert parse_node_noise(_manifest(_CENTRAL)) is parse_node_noise(b"{}") is None
    assert parse_server_noise(_manifest(_DISTRIBUTED)) is None


@golden.values
def test_invalid_node_noise_raises(case):
    group = {**_GROUP_ENTRY, **case.pop("group", {})}
    entry = {**_DISTRIBUTED, "groups": [group], **case}
    return refusal(parse_node_noise, _manifest(entry))


@golden.values
def test_invalid_server_noise_raises(case):
    draw = {**_CENTRAL["draw"], **case.pop("draw", {})}
    return refusal(parse_server_noise, _manifest({**_CENTRAL, "draw": draw, **case}))


def _manifest(entry) -> bytes:
    return json.dumps({"privacy": {"differential_privacy": entry}}).encode()


def _nothing(variance, size) -> np.ndarray:
    return np.zeros(size, np.int64)


def _seeded(seed: int):
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 1 << 64, count, np.uint64)


def _words(values) -> np.ndarray:
    return np.array(values, np.uint64)
