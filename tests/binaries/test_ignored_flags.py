"""`train` and `compare` reject flags that other choices make ineffective.

Each row tests one reason; the tables of needs have further flags.
"""

import pytest

from binaries import compare, train
from tests.support.commands import TOY, Caller, compared_specs, given
from tff_agnostic.algorithms.tail_thresholds import SmoothBoundary

_DELTA = "--algorithm=delta_fl"
_AT_1, _BELOW_1 = "--lambda_update=cvar:level=1", "--lambda_update=cvar:level=0.9"
_CENTRAL, _DISTRIBUTED = (
    f"--privacy={name} --noise_multiplier=1" for name in ("central", "distributed")
)
_SECURE = "--aggregation=secure"
_HELDOUT, _OWN = "--lambda_baseline_losses=heldout", "--lambda_baselines=own"
# Each row: a flag, flags that make it ineffective (none for the defaults), flags that use it.
_ROWS = [
    ("--lambda_learning_rate=0.1", "--lambda_update=fixed", ""),
    ("--lambda_initial=0.6,0.1,0.1,0.1,0.1", "--lambda_set=hull:file=m.json", "--lambda_set=ball"),
    ("--boundary=exact", f"--threshold=tracked {_DELTA}", f"--threshold=lagged {_DELTA}"),
    ("--threshold=tracked:rate=0.5", f"--theta=1 {_DELTA}", f"--theta=1,0.5 {_DELTA}"),
    ("--lambda_absent=zero", _AT_1, _BELOW_1),
    ("--lambda_absent=zero", _AT_1, f"{_AT_1} --lambda_initial=0.6,0.1,0.1,0.1,0.1"),
    (_HELDOUT, "", _OWN),
    (_HELDOUT, "--lambda_baselines=1,2,3,4,5", _OWN),
    (_HELDOUT, "--lambda_baselines=trivial", _OWN),
    ("--limit_update=2", _CENTRAL, f"{_CENTRAL} {_SECURE}"),
    ("--limit_update=2", f"{_DISTRIBUTED} {_SECURE}", f"--privacy=none {_SECURE}"),
    ("--measured_share=0.2", "--algorithm=fed_avg", "--algorithm=term"),
    ("--joint_clipping", _DISTRIBUTED, _CENTRAL),
    ("--client_mode=streamed", "--runtime=tff", "--runtime=cohort"),
]


@pytest.mark.parametrize(("flag", "ignored_by", "used_by"), _ROWS)
def test_train_rejects_ignored_flag(folder, flag, ignored_by, used_by):
    message = Caller(None).refused(folder, train, *TOY, *ignored_by.split(), flag)
    name, choice = (text.partition("=")[0] for text in (flag, ignored_by))
    assert message.startswith(f"{name} has no effect with")
    assert choice in message
    given(train, *TOY, *used_by.split(), flag).spec()


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
