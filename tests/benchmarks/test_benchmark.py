"""The benchmark's command: its flags, its tables, and its status when a side fails."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import benchmark
from benchmarks.timing import sides
from benchmarks.timing.page import BEGIN, END
from benchmarks.timing.process_tree import descendants
from benchmarks.timing.scale import ScalePlan
from benchmarks.timing.sides import SideSpec
from tests import golden
from tests.benchmarks.timing.harness import FAKE_SIDE, HANG, TINY
from tests.binaries.harness import Caller, Process
from tests.processes import is_running, wait_until
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.registry import Registry

QUICK = ("--rounds=2", "--repeats=1", "--output_dir=results")


@pytest.fixture
def call():
    """Calls that use no runtime in this process: sides have processes of their own."""
    return Caller(None)


@pytest.fixture
def tiny(monkeypatch):
    """Workloads that take no time, under the names of the real ones."""
    workloads = Registry("workload", {name: TINY for name in benchmark.WORKLOADS})
    monkeypatch.setattr(benchmark, "WORKLOADS", workloads)
    plan = ScalePlan(
        cohorts=(TINY, TINY), long_run=TINY, long_rounds=4, look_every=2, store_clients=0
    )
    monkeypatch.setattr(benchmark, "ScalePlan", lambda: plan)


@pytest.fixture
def fake_peers(monkeypatch):
    """Peers that do what their name says."""

    def peer(behaviour):
        return SideSpec(title=f"the {behaviour} one", script=str(FAKE_SIDE), algorithm=behaviour)

    names = ("good", "raises", "killed", "hangs_at_once")
    monkeypatch.setattr(benchmark, "PEERS", Registry("peer", {name: peer(name) for name in names}))


@pytest.fixture
def fake_ours(monkeypatch):
    """Fast sides in the place of ours, where those are not what is tested."""
    fast = [SideSpec(title="ours", script=str(FAKE_SIDE), algorithm="sleepy")]
    monkeypatch.setattr(benchmark, "own_sides", lambda runtime, device: fast)


@pytest.mark.slow
@golden.arguments
def test_wrong_flags_are_told_before_anything_starts(call, folder, arguments):
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "page.md").write_text("# A page\n")
    return call.refused(folder, benchmark, "--runtime=tff", *arguments)


@pytest.mark.nightly
def test_the_price_of_every_algorithm_is_beside_fed_avgs(call, folder, tiny):
    outcome = call(
        benchmark, "--workload=logistic", "--algorithms=all", "--rounds=1", "--output_dir=results"
    )
    assert outcome.status == 0, outcome
    rows = json.loads((folder / "results" / "benchmark.json").read_text())["prices"]["logistic"]
    found = {row["title"]: row for row in rows}
    assert set(ALGORITHMS) < set(found)
    assert found["fed_avg"]["ratio"] == 1
    for title, row in found.items():
        assert row["beside"] == ("evaluation: losses and metrics" if "eval" in title else "fed_avg")
        assert row["ratio"] == pytest.approx(row["seconds"] / found[row["beside"]]["seconds"])
    assert {"fed_avg, sums: secure", "agnostic_fed_avg, sums: tree, secure"} < set(found)


@pytest.mark.nightly
def test_ours_alone(call, folder, tiny):
    outcome = call(benchmark, "--workload=logistic", "--peers=none", *QUICK)
    assert outcome.status == 0, outcome
    result = json.loads(Path("results/benchmark.json").read_text())
    assert list(result["workloads"]) == ["tiny"]
    timed = result["workloads"]["tiny"]
    assert list(timed["sides"]) == ["AgnosticFedAvg", "FedAvg (ours)"]
    for side in timed["sides"].values():
        assert len(side["seconds"][0]) == 2
        assert side["peak_bytes"] > 10**8
        assert side["first_round_seconds"] > side["median_seconds"]
        assert side["versions"]["tensorflow"].startswith("2.14")
    assert timed["matrix_products"]["share_of_our_round"] > 0
    assert result["scale"] is None
    page = Path("results/benchmark.md").read_text()
    assert "--workload=logistic" in page
    assert "AgnosticFedAvg" in outcome.out


@pytest.mark.nightly
def test_scale(call, folder, tiny):
    outcome = call(benchmark, "--workload=scale", *QUICK)
    assert outcome.status == 0, outcome
    result = json.loads(Path("results/benchmark.json").read_text())
    assert result["workloads"] == {}
    assert len(result["scale"]["cohorts"]) == 2
    assert list(result["scale"]["long_run"]["memory_bytes"]) == ["2", "4"]


@pytest.mark.nightly
def test_a_peer_that_fails_is_named_and_the_others_go_on(call, folder, tiny, fake_peers, fake_ours):
    outcome = call(benchmark, "--workload=logistic", "--peers=good,raises,killed", *QUICK)
    assert outcome.status == 1
    # Nothing comes after them.
    assert outcome.err.splitlines()[-2:] == [
        "failed: the raises one, tiny: ended with status 1: IndexError: list index out of range",
        "failed: the killed one, tiny: was ended by SIGKILL: it printed nothing",
    ]
    timed = json.loads(Path("results/benchmark.json").read_text())["workloads"]["tiny"]["sides"]
    assert timed["the good one"]["ratio"] is not None
    assert timed["the raises one"]["failure"]


@pytest.mark.nightly
def test_a_peer_without_a_round_is_given_up(call, folder, tiny, fake_peers, fake_ours):
    peers, limit = "--peers=hangs_at_once,good", f"--round_limit={HANG:.0f}"
    outcome = call(benchmark, "--workload=logistic", peers, limit, *QUICK)
    assert outcome.status == 1
    given_up = f"the hangs_at_once one, tiny: no round within {HANG:.0f} s: it printed nothing"
    assert f"failed: {given_up}" in outcome.err.splitlines()
    assert f"\n- {given_up}\n" in Path("results/benchmark.md").read_text()
    timed = json.loads(Path("results/benchmark.json").read_text())["workloads"]["tiny"]["sides"]
    assert len(timed["the good one"]["seconds"][0]) == len(timed["ours"]["seconds"][0]) == 2


@pytest.mark.nightly
def test_a_page_gets_the_results_and_keeps_the_rest(call, folder, tiny, fake_peers, fake_ours):
    page = Path("page.md")
    page.write_text(f"# Ours\n\n{BEGIN}\n\nOld.\n\n{END}\n\nThe end.\n")
    outcome = call(benchmark, "--workload=logistic", "--peers=good", "--page=page.md", *QUICK)
    assert outcome.status == 0, outcome
    before, _, rest = page.read_text().partition(f"{BEGIN}\n\n")
    section, _, after = rest.partition(f"\n\n{END}\n")
    assert (before, after) == ("# Ours\n\n", "\nThe end.\n")
    assert section.startswith("    ./run benchmark --workload=logistic --peers=good ")
    assert "\n#### tiny\n" in section
    assert "\n| the good one " in section
    assert "Old." not in section


@pytest.mark.nightly
def test_no_process_stays_after_ctrl_c(folder):
    """In the middle of a workload that is not tiny; test_process has the other signals."""
    command = [sys.executable, "-m", "benchmarks.benchmark", "--workload=logistic", "--peers=tff"]
    with Process([*command, *QUICK], folder) as process:
        wait_until(lambda: len(descendants(process.started)) >= 2)
        pids = descendants(process.started)
        process.send(signal.SIGINT)
        outcome = process.outcome()
        wait_until(lambda: not any(map(is_running, pids)))
    assert outcome.status == 130
    assert "Traceback" not in outcome.err


def test_peers_have_titles_of_their_own():
    titles = [side.title for side in [*sides.own_sides("tff"), *sides.PEERS.values()]]
    assert len(set(titles)) == len(titles)


def test_on_a_gpu_ours_are_also_streamed_and_on_the_cpu():
    ours = sides.own_sides("cohort", "gpu")
    assert len({side.title for side in ours}) == len(ours)
    where = [(side.algorithm, side.device, side.client_mode) for side in ours]
    assert where == [
        ("agnostic_fed_avg", "gpu", "auto"),
        ("fed_avg", "gpu", "auto"),
        ("agnostic_fed_avg", "gpu", "streamed"),
        ("agnostic_fed_avg", "cpu", "auto"),
    ]


def test_guards_need_nothing_of_this_environment():
    from benchmarks.timing import guard

    code = f"import runpy; runpy.run_path({guard.__file__!r})"
    subprocess.run([sys.executable, "-ISc", code], check=True)
