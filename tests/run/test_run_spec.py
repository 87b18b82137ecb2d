"""Settings of runs: defaults, flags without effect, config.json, and keys of private cohorts."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from binaries import train
from tests.support.commands import given
from tests.support.comparing import assert_identical
from tests.support.options import make_options
from tff_agnostic.aggregations.private_sum import DistributedOptions
from tff_agnostic.algorithms import ALGORITHMS, AgnosticFedAvgOptions
from tff_agnostic.data.sampling import poisson_cohort, turns
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import option_values
from tff_agnostic.program.runs.spec import from_flags, resolve
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.task import Use
from tff_agnostic.training.private_cohorts import cohort_seed, noise_key


@pytest.mark.parametrize(
    "task", [name for name in DEFAULTS if DEFAULTS[name].settings_by_algorithm]
)
def test_algorithms_have_task_defaults(task):
    for algorithm, defaults in DEFAULTS[task].settings_by_algorithm.items():
        settings = resolve(task, {"algorithm": algorithm}, {}).settings()
        assert {name: settings[name] for name in defaults} == defaults
        values = option_values(ALGORITHMS[algorithm].options())
        given = {name: values[name] for name in defaults}
        settings = resolve(task, {"algorithm": algorithm, **given}, {}).settings()
        assert {name: settings[name] for name in defaults} == given


_GIVEN: list[dict[str, Any]] = [
    {},
    {"lambda_initial": (0.25, 0.75), "client_shuffle": False, "seed": 5},
    {"algorithm": "fed_avg_target_only", "target_domain": 'with "quotes"\n'},
    {"algorithm": "q_ffl", "q": 0.0, "client_weighting": "equal"},
    {"algorithm": "fed_prox", "mu": 2.0, "aggregation": "secure", "limit_weight": 0.1},
]


@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.parametrize("task", list(DEFAULTS))
def test_flags_of_settings_give_equal_settings(task, given, tmp_path):
    data_dir, data = (
        tmp_path / name if use is not Use.NO else None
        for name, use in (
            ("folder", DEFAULTS[task].spec.data_dir),
            ("store", DEFAULTS[task].spec.data),
        )
    )
    spec = resolve(task, given, {}, data_dir, data)
    flags = spec.flags()
    assert from_flags(flags) == spec
    assert from_flags(json.loads(json.dumps(flags))) == spec


def test_data_dir_is_resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("data", "other/../data", str(tmp_path / "data")):
        assert resolve("adult", {}, {}, Path(name)).data_dir == str((tmp_path / "data").resolve())


def test_initial_model_is_the_newest_intact_checkpoint(tmp_path, caplog):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", keep=9)

    def start() -> Path:
        return resolve("digits", {"initial_model": str(tmp_path)}, {}).config.initial_model

    for round_num in (1, 2):
        checkpoints.save(round_num, {"weight": np.float32(round_num)}, {})
    newest = tmp_path / "checkpoints" / "round_00000002.npz"
    newest.write_bytes(newest.read_bytes()[:-9])
    assert {start() for _ in range(3)} == {newest.with_name("round_00000001.npz")}
    assert caplog.text.count("round_00000002.npz: expected a checkpoint, found a damaged") == 1
    checkpoints.save(3, {"weight": np.float32(3)}, {})
    assert start() == newest.with_name("round_00000003.npz")


def test_limit_of_examples_applies_to_training_clients_only():
    whole = resolve("toy_regression", {}, {"num_clients": 3}).load_task()
    task = resolve("toy_regression", {"max_examples": 2}, {"num_clients": 3}).load_task()
    for actual, every, limit in ((task.train, whole.train, 2), (task.test, whole.test, None)):
        assert list(actual.client_ids) == list(every.client_ids)
        for client_id in every.client_ids:
            expected = {name: c[:limit] for name, c in every.read(client_id).items()}
            assert_identical(dict(actual.read(client_id)), expected)


def test_given_defaults_count_as_given():
    default = AgnosticFedAvgOptions().client.epochs
    actual = given(train, f"--client_epochs={default}", "--noclient_shuffle")
    assert actual.settings == {"client_epochs": default, "client_shuffle": False}
    assert actual.spec() == resolve("digits", {"client_shuffle": False}, {})


# --- Private cohorts derive from noise keys


_IDS = [f"{k:03d}" for k in range(200)]
_NUMBERS = {"philox": 2, "secure": 4}


def _state(key: tuple[int, ...]) -> Any:
    return SimpleNamespace(aggregations=(SimpleNamespace(noise_key=np.array(key, np.int64)),))


@pytest.mark.parametrize("generator", _NUMBERS)
def test_noise_keys_differ_unless_seeded(generator):
    def key(**seed: int) -> tuple[int, ...]:
        return noise_key(make_options(DistributedOptions, noise_generator=generator, **seed))

    keys = {key() for _ in range(20)}
    assert len(keys) == 20
    assert {len(key) for key in keys} == {_NUMBERS[generator]}
    smallest = {"philox": 0, "secure": -(2**63)}[generator]
    assert all(smallest <= number < 2**63 for key in keys for number in key)
    # Keys use the whole range of their numbers.
    assert min(map(min, keys)) < smallest + 2**61
    assert key(noise_seed=3) == key(noise_seed=3) != key(noise_seed=4)


def test_secure_cohorts_match_chacha20_coins():
    """A client's coin is a number of a ChaCha20 stream, whose key is a hash of the noise key."""
    key, round_num = (1, 2, -3, 4), 6
    digest = hashlib.sha256(b"cohorts" + np.array(key, np.int64).tobytes()).digest()
    nonce = np.array([0, 11, round_num, 0], np.uint32).tobytes()
    cipher = Cipher(algorithms.ChaCha20(digest, nonce), None)
    words = np.frombuffer(cipher.encryptor().update(bytes(8 * len(_IDS))), np.uint64)
    expected = {_IDS[i] for i in np.flatnonzero(words < 2**64 * 0.2)}
    assert set(poisson_cohort(_IDS, 40, cohort_seed(_state(key)), round_num)) == expected


def test_resumed_run_draws_the_same_cohorts():
    seed, again, other = (cohort_seed(_state((1, 2, 3, k))) for k in (4, 4, 5))
    assert poisson_cohort(_IDS, 30, seed, 3) == poisson_cohort(_IDS, 30, again, 3)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, seed, 4)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, other, 3)
    assert turns(_IDS, 30, seed) == turns(_IDS, 30, again)
    assert sorted(client for cohort in turns(_IDS, 30, seed) for client in cohort) == _IDS
