"""What a run is: defaults in their order, whose settings are, and config.json there and back."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from binaries import train
from tests import golden
from tests.binaries.harness import given
from tests.options import make_options
from tff_agnostic.aggregations.private_sum import DistributedOptions
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.algorithms import ALGORITHMS, AgnosticFedAvgOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import hints
from tff_agnostic.data.sampling import poisson_cohort, sample_cohort, turns
from tff_agnostic.program.commands.train import TRAIN
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import flags_of, values_of
from tff_agnostic.program.options.process import define
from tff_agnostic.program.runs.options import RunConfig, run_flags
from tff_agnostic.program.runs.spec import RunSettings, check_used_by_any, from_flags, resolve
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.task import Use
from tff_agnostic.training.private_cohorts import cohort_seed, noise_key


def _error(task: str, given: dict[str, Any], **arguments: Any) -> str:
    return golden.refusal(resolve, task, given, {}, **arguments)


def test_what_is_given_goes_before_the_tasks_defaults_and_those_before_the_general_ones():
    spec = resolve("toy_regression", {"rounds": 3}, {"num_clients": 9})
    assert spec.config.rounds == 3
    of_task, of_algorithm = DEFAULTS["toy_regression"].settings["window"], spec.algorithm.window
    assert of_algorithm == of_task != type(spec.algorithm)().window
    assert spec.algorithm.client.epochs == type(spec.algorithm)().client.epochs
    assert spec.task_options["num_clients"] == 9
    assert spec.task_options["spread"] == 0.1


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_a_run_has_the_settings_of_what_was_chosen(algorithm, aggregation):
    spec = resolve("digits", {"algorithm": algorithm, "aggregation": aggregation}, {})
    assert type(spec.algorithm) is ALGORITHMS[algorithm].options
    assert type(spec.aggregation) is AGGREGATIONS[aggregation].options
    assert ("secure_bits" in spec.settings()) == (aggregation == "secure")
    assert ("q" in spec.settings()) == (algorithm == "q_ffl")
    assert spec.build_aggregation().name == aggregation


def test_the_aggregation_has_its_settings():
    given = {"aggregation": "secure", "limit_examples": 7, "secure_bits": 20}
    aggregation = resolve("digits", given, {}).build_aggregation()
    assert (aggregation.limits.examples, aggregation.min_clients) == (7, 2)
    assert aggregation.options.secure_bits == 20


@pytest.mark.parametrize(
    "task", [name for name in DEFAULTS if DEFAULTS[name].settings_by_algorithm]
)
def test_an_algorithm_may_have_its_own_defaults(task):
    for algorithm, defaults in DEFAULTS[task].settings_by_algorithm.items():
        settings = resolve(task, {"algorithm": algorithm}, {}).settings()
        assert {name: settings[name] for name in defaults} == defaults
        values = values_of(ALGORITHMS[algorithm].options())
        given = {name: values[name] for name in defaults}
        settings = resolve(task, {"algorithm": algorithm, **given}, {}).settings()
        assert {name: settings[name] for name in defaults} == given


def test_what_an_earlier_run_had_is_inherited_unless_it_is_given():
    earlier = resolve("digits", {"window": 3, "rounds": 7, "client_epochs": 2}, {})
    spec = resolve("digits", {"rounds": 9}, {}, inherited=earlier.settings())
    assert (spec.algorithm.window, spec.algorithm.client.epochs, spec.config.rounds) == (3, 2, 9)


_GIVEN: list[dict[str, Any]] = [
    {},
    {"lambda_initial": (0.25, 0.75), "client_shuffle": False, "seed": 5},
    {"algorithm": "fed_avg_target_only", "target_domain": 'with "quotes"\n'},
    {"algorithm": "q_ffl", "q": 0.0, "client_weighting": "equal"},
    {"algorithm": "fed_prox", "mu": 2.0, "aggregation": "secure", "limit_weight": 0.1},
]


@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.parametrize("task", list(DEFAULTS))
def test_flags_there_and_back(task, given, tmp_path):
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


def test_flags_name_every_setting_of_the_run_and_no_other():
    flags = resolve("digits", {"algorithm": "q_ffl"}, {}).flags()
    assert set(flags) == {
        "task",
        "data_dir",
        "data",
        *(flag.name for flag in flags_of(DEFAULTS["digits"].spec.options)),
        # A flag that is given each time is not stored.
        *({flag.name for flag in flags_of(RunConfig)} - {"trust"}),
        *(flag.name for flag in flags_of(ALGORITHMS["q_ffl"].options)),
    }


@golden.values
def test_what_is_given_has_to_have_an_effect(case):
    return _error("digits", case)


def test_what_several_runs_are_given_has_to_have_an_effect_on_one_of_them():
    shared = {"window": 3}
    runs = [
        resolve("digits", {"algorithm": name}, {}, shared=shared)
        for name in ("fed_avg", "agnostic_fed_avg")
    ]
    assert runs[1].algorithm.window == 3
    check_used_by_any(runs, shared)
    with pytest.raises(UserError, match=r"^--window has no effect with --algorithm=fed_avg: it n"):
        check_used_by_any(runs[:1], shared)


def test_a_data_dir_is_the_same_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("data", "other/../data", str(tmp_path / "data")):
        assert resolve("adult", {}, {}, Path(name)).data_dir == str((tmp_path / "data").resolve())


def test_trials_start_from_the_newest_checkpoint_and_a_damaged_one_is_told_of_once(
    tmp_path, caplog
):
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


def test_a_missing_flag_is_a_key_error():
    flags = resolve("digits", {}, {}).flags()
    for name in ("task", "window", "rounds", "keep", "data_dir", "data"):
        with pytest.raises(KeyError, match=name):
            from_flags({k: v for k, v in flags.items() if k != name})


def test_wrong_values_are_refused():
    flags = resolve("digits", {}, {}).flags()
    with pytest.raises(UserError, match="--rounds: expected at least 1, found 0"):
        from_flags({**flags, "rounds": 0})
    with pytest.raises(UserError, match="unknown task 'digit'"):
        from_flags({**flags, "task": "digit"})
    with pytest.raises(UserError, match="--algorithm: unknown algorithm 'fedavg'"):
        from_flags({**flags, "algorithm": "fedavg"})
    assert _error("digits", {"window": -1}) == "--window: expected at least 1, found -1"
    q = {"algorithm": "q_ffl", "q": -1.0}
    assert _error("digits", q) == "--q: expected at least 0 and at most 100, found -1.0"
    assert _error("digits", {"aggregation": "plane"}).startswith("--aggregation: unknown aggr")


def test_tasks_are_loaded_with_the_seed_and_the_options():
    spec = resolve("toy_regression", {"seed": 4}, {"num_clients": 3})
    assert len(spec.load_task().train.client_ids) == 3
    first = spec.load_task().train.read("client_000")["y"]
    other_seed = resolve("toy_regression", {"seed": 5}, {"num_clients": 3}).load_task()
    assert first.tolist() == spec.load_task().train.read("client_000")["y"].tolist()
    assert first.tolist() != other_seed.train.read("client_000")["y"].tolist()


def test_training_clients_are_cut_to_their_first_examples_and_test_clients_are_not():
    whole = resolve("toy_regression", {}, {"num_clients": 3}).load_task()
    task = resolve("toy_regression", {"max_examples": 2}, {"num_clients": 3}).load_task()
    assert list(task.train.client_ids) == list(whole.train.client_ids)
    for client_id in whole.train.client_ids:
        found, expected = task.train.read(client_id), whole.train.read(client_id)
        assert {name: c.tolist() for name, c in found.items()} == {
            name: c[:2].tolist() for name, c in expected.items()
        }
    for client_id in whole.test.client_ids:
        expected = whole.test.read(client_id)
        assert {name: c.tolist() for name, c in task.test.read(client_id).items()} == {
            name: c.tolist() for name, c in expected.items()
        }


# --- Flags made from the settings of a run and the options of every task


def _parse(*arguments: str) -> RunSettings:
    return given(train, *arguments).spec()


def test_without_flags_a_run_is_the_default_tasks_own():
    assert _parse() == resolve("digits", {}, {})
    assert given(train).settings == {}


def test_what_is_given_is_told_from_what_is_a_default():
    default = AgnosticFedAvgOptions().client.epochs
    found = given(train, f"--client_epochs={default}", "--noclient_shuffle")
    assert found.settings == {"client_epochs": default, "client_shuffle": False}
    spec = found.spec()
    assert spec == resolve("digits", {"client_shuffle": False}, {})


@pytest.mark.parametrize("task", list(DEFAULTS))
def test_every_run_can_be_given_by_its_flags(task):
    """What config.json holds, written out as flags, is the same run again."""
    spec = resolve(task, {"seed": 3, "lambda_initial": (0.25, 0.75)}, {})
    defaults = resolve(task, {}, {}).settings()
    arguments = []
    for name, value in spec.flags().items():
        read = tuple(value) if isinstance(value, list) else value
        is_default = name in defaults and defaults[name] == read
        if value is not None and not is_default:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            arguments.append(f"--{name}={text}")
    assert _parse(*arguments) == spec


def test_lists_of_numbers():
    spec = _parse("--lambda_initial=0.5, 0.25,0.25", "--lambda_baselines=1,2,3")
    assert spec.algorithm.lambda_.initial == (0.5, 0.25, 0.25)
    assert spec.algorithm.lambda_.baselines == (1.0, 2.0, 3.0)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(UserError, match="unknown flag 'round': did you mean rounds"):
        run_flags()["round"]


def test_help_names_choices_and_defaults():
    with flagsaver.flagsaver():
        define(TRAIN.define_flags)
        _check_help()


def _check_help() -> None:
    def text(name: str) -> str:
        return flags.FLAGS[name].help

    assert f"Names: {', '.join(ALGORITHMS)}." in text("algorithm")
    assert "One of: auto, vectorised, streamed." in text("client_mode")
    # A text that explains every choice names them by itself.
    assert text("runtime").endswith("the reference (tff). [cohort]")
    rounds = DEFAULTS["digits"].settings["rounds"]
    assert f"[digits: {rounds};" in text("rounds")
    assert text("rounds").endswith(f"otherwise {RunConfig().rounds}]")
    assert text("client_shuffle").endswith("[true]")
    assert text("q").endswith("Of: q_ffl. [1.0]")
    with_optimizer = [name for name, spec in ALGORITHMS.items() if "server" in hints(spec.options)]
    assert f"Of: {', '.join(with_optimizer)}." in text("server_optimizer")
    assert "stochastic_afl" not in text("client_shuffle")
    assert text("client_weighting").endswith("Of: delta_fl, q_ffl, term. [examples]")
    assert "Of: secure." in text("secure_bits")
    assert text("num_clients").endswith("[50]")
    assert f"One of: {', '.join(DEFAULTS)}." in text("task")


# --- Keys are as long as their generators want them, and cohorts are drawn as the account assumes


_IDS = [f"{k:03d}" for k in range(200)]
_NUMBERS = {"philox": 2, "secure": 4}


def _state(key: tuple[int, ...]) -> Any:
    return SimpleNamespace(aggregations=(SimpleNamespace(noise_key=np.array(key, np.int64)),))


@pytest.mark.parametrize("generator", _NUMBERS)
def test_keys_are_new_unless_they_are_seeded(generator):
    unseeded = make_options(DistributedOptions, noise_generator=generator)
    keys = {noise_key(unseeded) for _ in range(20)}
    assert len(keys) == 20
    assert {len(key) for key in keys} == {_NUMBERS[generator]}
    smallest = {"philox": 0, "secure": -(2**63)}[generator]
    assert all(smallest <= number < 2**63 for key in keys for number in key)
    # All bits of a number are used.
    assert min(map(min, keys)) < smallest + 2**61
    seeded = make_options(DistributedOptions, noise_generator=generator, noise_seed=3)
    assert (
        noise_key(seeded)
        == noise_key(seeded)
        != noise_key(make_options(DistributedOptions, noise_generator=generator, noise_seed=4))
    )


def test_keys_and_cohorts_of_philox_are_those_of_earlier_releases():
    key = noise_key(make_options(DistributedOptions, noise_seed=3))
    assert key == (2963875794002553787, 8040795128286049514)
    assert poisson_cohort(_IDS, 4, cohort_seed(_state(key)), 2) == [
        "125",
        "050",
        "098",
        "140",
    ]


def test_secure_cohorts_are_coins_of_chacha20():
    """Each client's number is 53 bits of the stream of a key that is made of the noise's."""
    key, round_num = (1, 2, -3, 4), 6
    digest = hashlib.sha256(b"cohorts" + np.array(key, np.int64).tobytes()).digest()
    nonce = np.array([0, 11, round_num, 0], np.uint32).tobytes()
    cipher = Cipher(algorithms.ChaCha20(digest, nonce), None)
    words = np.frombuffer(cipher.encryptor().update(bytes(8 * len(_IDS))), np.uint64)
    expected = {_IDS[i] for i in np.flatnonzero(words < 2**64 * 0.2)}
    assert set(poisson_cohort(_IDS, 40, cohort_seed(_state(key)), round_num)) == expected


@pytest.mark.nightly
def test_secure_cohorts_are_drawn_with_equal_chances():
    seed, took_part = cohort_seed(_state((1, 2, 3, 4))), np.zeros([2, len(_IDS)])
    for round_num in range(1, 401):
        for k, draw in enumerate((poisson_cohort, sample_cohort)):
            cohort = draw(_IDS, 30, seed, round_num)
            took_part[k, [int(client) for client in cohort]] += 1
            assert len({*cohort}) == len(cohort)
            assert k == 0 or len(cohort) == 30
    for counts in took_part:
        variance = 400 * 0.15 * 0.85
        statistic = np.sum((counts - 400 * 0.15) ** 2) / variance
        assert stats.chi2(len(_IDS)).cdf(statistic) < 0.99
    strata = np.arange(len(_IDS)) % 2
    assert len(sample_cohort(_IDS, 31, seed, 1, strata)) == 31


def test_secure_cohorts_are_drawn_again_in_a_resumed_run():
    seed, again, other = (cohort_seed(_state((1, 2, 3, k))) for k in (4, 4, 5))
    assert poisson_cohort(_IDS, 30, seed, 3) == poisson_cohort(_IDS, 30, again, 3)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, seed, 4)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, other, 3)
    assert turns(_IDS, 30, seed) == turns(_IDS, 30, again)
    assert sorted(client for cohort in turns(_IDS, 30, seed) for client in cohort) == _IDS
