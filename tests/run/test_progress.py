"""What a round is in a line."""

import sys
from collections import OrderedDict

from tests.run.harness import QUANTITIES, make_report
from tff_agnostic.report_fields import ReportField
from tff_agnostic.run.live import Progress, round_in_short

_NAMES = ("phone", "tablet")
_REPORT = make_report(losses=[2.0, 3.0], counts=[5, 4], weights=[0.25, 0.75])


def _without(*keys: str) -> str:
    quantities, report = (
        OrderedDict((k, v) for k, v in m.items() if k not in keys) for m in (QUANTITIES, _REPORT)
    )
    return round_in_short(quantities, _NAMES, report)


def test_the_worst_domain_with_its_loss_and_its_weight():
    assert _without() == "worst domain tablet: loss 3.000, pull 0.750"


def test_a_run_without_weights_or_without_losses():
    assert _without("domain_weights") == "worst domain tablet: loss 3.000"
    assert _without("client_work") == _without("client_work", "domain_weights")
    assert _without("client_work") == "update_norm 0.5"
    assert _without("client_work", "finalizer") == ""


def test_lines_where_there_is_no_terminal(capsys):
    assert not sys.stderr.isatty()
    quantities = OrderedDict(count=ReportField("clients", "clients"))
    with Progress(quantities, _NAMES, completed=1, total=40, visible=True) as progress:
        for round_num in range(2, 6):
            progress.show(round_num, OrderedDict(count=10))
        progress.note("a worker was started again")
    assert capsys.readouterr().err.splitlines() == [
        "round 2/40, clients 10",
        "round 4/40, clients 10",
        "a worker was started again",
    ]
