"""`train` and `compare` reject flags that other choices make ineffective."""

from typing import NamedTuple

import pytest

from binaries import compare, train
from tests.support.commands import TOY, Caller, compared_specs, given
from tff_agnostic.algorithms.tail_thresholds import SmoothBoundary

_AGNOSTIC, _AFL, _BOOST, _DELTA = (
    f"--algorithm={name}"
    for name in ("agnostic_fed_avg", "stochastic_afl", "afl_boost", "delta_fl")
)
_UPDATE = "--lambda_update"
_FIXED, _CVAR = f"{_UPDATE}=fixed", f"{_UPDATE}=cvar"
_AT_1, _BELOW_1 = f"{_CVAR}:level=1", f"{_CVAR}:level=0.9"
_SAMPLING = "--predictor_sampling"
_NUMBERS = "--lambda_baselines=1,2,3,4,5"
_CENTRAL, _DISTRIBUTED = (
    (f"--privacy={name}", "--noise_multiplier=1") for name in ("central", "distributed")
)


class _Pair(NamedTuple):
    """A flag, arguments that make it ineffective, and arguments that use it.

    Attributes:
        flag: Argument with the flag and a value.
        ignored_by: Arguments with which the flag has no effect; empty for the defaults.
        used_by: Arguments with which the flag has an effect.
    """

    flag: str
    ignored_by: tuple[str, ...]
    used_by: tuple[str, ...] = ()


_PAIRS = (
    # Fixed lambda.
    _Pair("--lambda_learning_rate=0.1", (_FIXED,)),
    _Pair("--lambda_absent=zero", (_FIXED,)),
    _Pair(_NUMBERS, (_FIXED,)),
    _Pair("--lambda_baseline_losses=heldout", (_FIXED,), ("--lambda_baselines=own",)),
    _Pair("--lambda_absent=freeze", (_FIXED, _AFL), (_AFL,)),
    _Pair("--loss_estimate=ratio", (_FIXED, _AFL), (_AFL,)),
    _Pair("--lambda_learning_rate=0.1", (_FIXED, _BOOST), (_BOOST,)),
    # CVaR.
    _Pair("--lambda_learning_rate=0.1", (_CVAR,)),
    _Pair("--lambda_absent=zero", (_AT_1,), (_BELOW_1,)),
    _Pair(_NUMBERS, (_AT_1,), (_BELOW_1,)),
    _Pair("--lambda_absent=zero", (_AT_1,), (_AT_1, "--lambda_initial=0.6,0.1,0.1,0.1,0.1")),
    # Settings of baselines.
    _Pair("--lambda_baseline_losses=heldout", (), ("--lambda_baselines=own",)),
    _Pair("--lambda_baseline_losses=heldout", (_NUMBERS,), ("--lambda_baselines=own",)),
    _Pair(
        "--lambda_baseline_losses=heldout",
        ("--lambda_baselines=trivial",),
        ("--lambda_baselines=own",),
    ),
    # Lambda sets.
    _Pair(
        "--lambda_initial=0.6,0.1,0.1,0.1,0.1",
        ("--lambda_set=hull:file=m.json",),
        ("--lambda_set=ball",),
    ),
    # Delta-FL.
    _Pair("--boundary=exact", ("--threshold=tracked", _DELTA), ("--threshold=lagged", _DELTA)),
    _Pair("--threshold=tracked:rate=0.5", ("--theta=1", _DELTA), ("--theta=1,0.5", _DELTA)),
    _Pair("--boundary=smooth:width=0.5", ("--theta=1", _DELTA), ("--theta=0.5", _DELTA)),
    # FedBoost.
    _Pair("--budget=2", (f"{_SAMPLING}=none", _BOOST), (f"{_SAMPLING}=uniform", _BOOST)),
    _Pair(
        "--uniform_share=0.1", (f"{_SAMPLING}=uniform", _BOOST), (f"{_SAMPLING}=weighted", _BOOST)
    ),
    _Pair(
        "--predictor_draw=independent",
        (f"{_SAMPLING}=none", _BOOST),
        (f"{_SAMPLING}=uniform", _BOOST),
    ),
    # Only one algorithm, aggregation or privacy uses each of these settings.
    *(
        _Pair(flag, ("--algorithm=fed_avg",), (f"--algorithm={user}",))
        for flag, user in (
            ("--measured_share=0.2", "term"),
            ("--q=2", "q_ffl"),
            ("--mirror_map=entropy", "fed_boost"),
        )
    ),
    *(
        _Pair(flag, ("--aggregation=plain",), ("--aggregation=secure",))
        for flag in ("--secure_bits=16", "--secure_min_clients=3", "--limit_loss=3")
    ),
    *(
        _Pair(flag, ("--privacy=none",), _CENTRAL)
        for flag in ("--noise_multiplier=1", "--clip_norm=2", "--clipping=adaptive")
    ),
    *(
        _Pair(flag, _CENTRAL, _DISTRIBUTED)
        for flag in ("--noise_generator=secure", "--participation=public")
    ),
    _Pair("--joint_clipping", _DISTRIBUTED, _CENTRAL),
    _Pair("--private_evaluation=noise:multiplier=1", _DISTRIBUTED, _CENTRAL),
    _Pair("--limit_update=2", _CENTRAL, (*_CENTRAL, "--aggregation=secure")),
    _Pair(
        "--limit_update=2",
        (*_DISTRIBUTED, "--aggregation=secure"),
        ("--privacy=none", "--aggregation=secure"),
    ),
    # Runtimes.
    *(
        _Pair(flag, (f"--runtime={other}",), (f"--runtime={user}",))
        for flag, other, user in (
            ("--client_mode=streamed", "tff", "cohort"),
            ("--xla", "tff", "cohort"),
            ("--lanes=1", "ray", "cohort"),
            ("--ray_address=auto", "cohort", "ray"),
        )
    ),
)


@pytest.mark.parametrize("pair", _PAIRS, ids=lambda pair: " ".join((pair.flag, *pair.ignored_by)))
def test_train_rejects_ignored_flag(folder, pair):
    message = Caller(None).refused(folder, train, *TOY, *pair.ignored_by, pair.flag)
    name, choice = (flag.partition("=")[0] for flag in (pair.flag, *pair.ignored_by, "")[:2])
    assert message.startswith(f"{name} has no effect with")
    assert choice in message
    given(train, *TOY, *pair.used_by, pair.flag).spec()


def test_compare_accepts_flag_that_one_method_uses():
    arms = "--arms=uniform;moving=agnostic_fed_avg;full=delta_fl:theta=1;half=delta_fl"
    specs = compared_specs(*TOY, arms, "--lambda_absent=zero", "--boundary=smooth:width=0.3")
    assert {run.algorithm.lambda_.absent for run in specs["moving"]} == {"zero"}
    assert {run.algorithm.boundary for run in specs["half"]} == {SmoothBoundary(0.3)}


def test_compare_rejects_flag_that_all_methods_ignore(folder):
    arms = "--arms=fed_avg;full=delta_fl:theta=1"
    message = Caller(None).refused(folder, compare, *TOY, arms, "--threshold=tracked:rate=0.3")
    assert message.startswith("--threshold has no effect with")
    arms = "--arms=a=delta_fl:theta=1;b=delta_fl:theta=1,client_epochs=2"
    message = Caller(None).refused(folder, compare, *TOY, "--boundary=smooth", arms)
    assert message == "--boundary has no effect with --theta=1: it needs a level below 1"
