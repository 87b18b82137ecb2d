"""Progress of long work: lines, and the estimated time left."""

import time

from tff_agnostic.program import progress
from tff_agnostic.program.progress import LongWork, progress_line


def test_progress_line_estimates_the_time_left():
    actual = progress_line("compare", 3, 12, "trials", 150, step="fed_avg, trial 2")
    assert actual == "compare: 3 of 12 trials, 2 min so far, about 8 min left (fed_avg, trial 2)"
    actual = progress_line("compare", 3, 12, "trials", 150, before=2)
    assert actual == "compare: 3 of 12 trials, 2 min so far, about 22 min left"
    actual = progress_line("compare", 2, 12, "trials", 10, before=2)
    assert actual == "compare: 2 of 12 trials, 10 s so far, time left unknown"
    actual = progress_line("import", 30_000_000, 120_000_000, "B", 20)
    assert actual == "import: 25% of 120 MB, 20 s so far, about 60 s left"
    actual = progress_line("import", 3e9, 12_345_678_901, "B", 4000)
    assert actual == "import: 24% of 12,346 MB, 67 min so far, about 3 h 28 min left"
    assert progress_line("import", 0, 2_340_000, "B", 1).startswith("import: 0% of 2.34 MB, ")
    actual = progress_line("import", 120_000_000, 120_000_000, "B", 20, step="sorting by client")
    assert actual == "import: 100% of 120 MB, 20 s so far (sorting by client)"


def test_lines_repeat_during_a_long_trial(capfd, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    with LongWork("compare", 4, "trials") as work:
        work.update()
        work.say("trial 2")
        time.sleep(0.2)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 1
    assert lines[-1].startswith("compare: 1 of 4 trials, 0 s so far, about ")
    assert lines[-1].endswith("(trial 2)")


def test_short_or_hidden_work_prints_nothing(capfd, monkeypatch):
    with LongWork("import", 100, "B") as work:
        work.update(100)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.001)
    with LongWork("import", 100, "B", visible=False):
        time.sleep(0.02)
    assert capfd.readouterr().err == ""


def test_time_left_counts_steps_within_trials(capfd, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    now = iter([100.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now, 160.0))
    with LongWork("compare", 5, "trials", done=1) as work:
        work.within(1, 2)
        time.sleep(0.1)
    # Half of the first of four trials took 60 s; an unfinished trial does not count as done.
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "compare: 1 of 5 trials, 60 s so far, about 7 min left"
