"""Each row of `combinations.py` trains, resumes, and agrees with streamed plain sums."""

import itertools
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from binaries import train
from tests.support.algorithms import build
from tests.support.clients import empty_client, random_client, spoiled_client
from tests.support.combinations import FACTORS, REFUSED, Row, covering, pairs
from tests.support.commands import TOY, Caller
from tests.support.comparing import assert_identical, flat
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tests.support.runtimes import ClientsInMemory, running_runtimes
from tests.support.sums import private_sum
from tff_agnostic.aggregations.aggregation import LimitedOptions, PlainSum
from tff_agnostic.aggregations.registry import UPDATE_AGGREGATORS, DpAggregator, named
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.base.options import Options
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.runtimes import cohort
from tff_agnostic.saving.checkpoints import CheckpointFolder

# First rows of the array; only the first three are not slow. In the seventh row, clients with equal
# examples add noise in TFF. The eighth row has TFF's secure aggregator in a round with two steps.
_CHOSEN = [
    dict(zip(FACTORS, row.split("-")))
    for row in (
        "agnostic_fed_avg-none-secure-vectorised-stratified-none",
        "agnostic_fed_avg-central-plain-streamed-poisson-none",
        "stochastic_afl-central-secure-streamed-stratified-none",
        "agnostic_fed_avg-distributed-secure-streamed-uniform-none",
        "agnostic_fed_avg-tree-secure-tff-turns-none",
        "agnostic_fed_avg-none-plain-tff-uniform-robust",
        "fed_boost-distributed-secure-tff-uniform-none",
        "delta_fl-none-secure-tff-poisson-secure",
    )
]
_ROWS = covering(_CHOSEN)
_SECURE = make_options(
    SecureSumOptions,
    limit_examples=20,
    limit_loss=8.0,
    limit_update=20.0,
    secure_bits=40,
    secure_min_clients=1,
)
_CLIENTS_PER_ROUND = 4

# Each client has the same examples as another client, but must not have the same noise.
_CLIENTS = ClientsInMemory(
    (f"c{k}", random_client(np.random.default_rng(k % 6), 1 + k % 6, [k % 3, (k + 1) % 3]))
    for k in range(12)
)


@pytest.fixture(scope="module")
def runtimes(request):
    """A function that returns the started runtime of a name."""
    with running_runtimes(request) as get:
        yield get


def _cohorts(sampling: str) -> list[list[Any]]:
    """Returns three cohorts; the first also has an empty client and a client with NaN."""
    draw = COHORT_SAMPLINGS[sampling](_CLIENTS, 3, _CLIENTS_PER_ROUND, 7)
    first, *others = ([_CLIENTS[client] for client in draw(t)] for t in (1, 2, 3))
    return [[*first, empty_client(), spoiled_client(np.nan)], *others]


def _aggregation(row: Row) -> Any:
    is_secure = row["aggregation"] == "secure"
    if (kind := UPDATE_AGGREGATORS[row["update_aggregator"]].kind) is not None:
        aggregator: Any = DpAggregator(0.001) if kind is DpAggregator else kind()
        secure_options = _SECURE if is_secure else Options()
        return named(aggregator, LimitedOptions(), secure_options, float(_CLIENTS_PER_ROUND))
    inner = SecureSum(_SECURE) if is_secure else PlainSum()
    if row["privacy"] == "none":
        return inner
    settings: dict[str, Any] = {"clip_norm": 0.5, "clipping": "adaptive"}
    if row["privacy"] == "distributed":
        settings |= {"min_clients": 1, "noise_generator": "secure"}
    return private_sum(row["privacy"], inner, 0.3, float(_CLIENTS_PER_ROUND), **settings)


def _reference(row: Row) -> Any:
    """Returns the row's aggregation on plain sums, or on secure sums if clients add the noise."""
    is_distributed = row["privacy"] == "distributed"
    return _aggregation(
        {
            **row,
            "aggregation": "secure" if is_distributed else "plain",
            "update_aggregator": "none",
        }
    )


def _marked(number: int, row: Row) -> Any:
    marks = (pytest.mark.nightly,) if number >= 28 else (pytest.mark.slow,) if number >= 3 else ()
    return pytest.param(row, id="-".join(row.values()), marks=marks)


@pytest.mark.parametrize("row", [_marked(*entry) for entry in enumerate(_ROWS)])
def test_row_resumes_and_matches_streamed_sums(row, runtimes, tmp_path):
    algorithm, cohorts = build(row["algorithm"]), _cohorts(row["cohort_sampling"])
    training = runtimes(row["runtime"]).training(algorithm, _aggregation(row))
    if row["aggregation"] == "secure":
        assert training.security.is_secure
    half, first_reports = run_rounds(training, cohorts[:1])
    restored = _restored(half, algorithm, training, tmp_path)
    assert_identical(restored, half)
    state, reports = run_rounds(training, cohorts[1:], restored)
    assert state.round_num == 3
    assert not any(report["skipped"] for report in (*first_reports, *reports))
    # TFF's noise has no seed.
    if row["update_aggregator"] != "dp":
        assert_identical(run_rounds(training, cohorts)[0], state)

    # Skip checks of guarantees, which compile a TFF process; the row's own sums have passed them.
    with mock.patch.object(cohort, "check_rounds", return_value=None):
        simple = runtimes("streamed").training(algorithm, _reference(row))
    expected, expected_reports = run_rounds(simple, cohorts)
    for report, expected_report in zip([*first_reports, *reports], expected_reports):
        assert report["clients"] == expected_report["clients"]
    if row["update_aggregator"] == "none":
        leaves = (tf.nest.flatten(s.algorithm) for s in (state, expected))
        for leaf, expected_leaf in zip(*leaves):
            np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-4, atol=1e-4)
    else:
        start = _weights(algorithm, training.initialize())
        step, plain_step = (_weights(algorithm, s) - start for s in (state, expected))
        # TFF's aggregators clip updates, so steps are shorter and nearly keep their direction.
        lengths = np.linalg.norm(step), np.linalg.norm(plain_step)
        # With DP the clip norm starts at 0.1, and clients have equal weights in the mean.
        is_tight = row["update_aggregator"] == "dp"
        assert step @ plain_step > (0.5 if is_tight else 0.8) * lengths[0] * lengths[1]
        assert (0.01 if is_tight else 0.2) * lengths[1] < lengths[0] < 1.05 * lengths[1]


def _restored(state: Any, algorithm: Any, training: Any, folder: Any) -> Any:
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=1)
    checkpoints.save(int(state.round_num), state, algorithm.models(state.algorithm))
    return checkpoints.load_latest().restore(training.initialize(), "here")


def _weights(algorithm: Any, state: Any) -> np.ndarray:
    return flat(algorithm.main_model(state.algorithm).trainable)


def test_rows_pair_every_algorithm_and_privacy():
    assert len(_ROWS) <= 56
    met = set().union(*map(pairs, _ROWS))
    assert not met & REFUSED
    for algorithm, privacy in itertools.product(FACTORS["algorithm"], FACTORS["privacy"]):
        assert {("algorithm", algorithm), ("privacy", privacy)} in met


_FLAGS = {
    ("privacy", "none"): (),
    **{("privacy", p): (f"--privacy={p}", "--noise_multiplier=1") for p in FACTORS["privacy"][1:]},
    **{("aggregation", a): (f"--aggregation={a}",) for a in FACTORS["aggregation"]},
    **{("runtime", r): (f"--runtime={r}",) for r in ("tff", "ray")},
    **{("runtime", m): (f"--client_mode={m}",) for m in ("streamed", "vectorised")},
    **{("cohort_sampling", s): (f"--cohort_sampling={s}",) for s in FACTORS["cohort_sampling"]},
    **{("update_aggregator", u): (f"--update_aggregator={u}",) for u in UPDATE_AGGREGATORS},
    ("update_aggregator", "dp"): ("--update_aggregator=dp:noise_multiplier=0.01",),
}


@pytest.mark.parametrize("pair", sorted(map(sorted, REFUSED)), ids=str)
def test_refused_pair_raises_user_error(tmp_path, monkeypatch, pair):
    monkeypatch.chdir(tmp_path)
    row = {"runtime": "tff"} if pair[1][0] == "update_aggregator" else {}
    if ("privacy", "distributed") in pair:
        row["aggregation"] = "secure"
    row.update(pair)
    flags = [flag for choice in row.items() for flag in _FLAGS[choice]]
    # Commands reject TFF's aggregators before a runtime, such as Ray, starts.
    call = Caller(None if "update_aggregator" in row else {})
    message = call.refused(tmp_path, train, *TOY, *flags)
    assert any(f"--{choice[0]}" in message for choice in pair), message
