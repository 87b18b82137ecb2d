"""The scoreboard: comparisons of made-up trials, its page, and its data sets."""

import csv

import numpy as np
import pytest

from benchmarks.scoreboard import DATA_SETS, Board, DataSet, data_arguments, page
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure
from tff_agnostic.program.options.tasks import check_task_options
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials
from tff_agnostic.program.studies.methods import WORDS
from tff_agnostic.program.studies.portfolio import IF_NAMED, PORTFOLIO

_NAMES = ("a", "b", "c")
_ACCURACY = Measure("accuracy", Unit.SHARE, True)
_LOSS = Measure("loss", Unit.NONE, False)
_PERPLEXITY = Measure("perplexity", Unit.FACTOR, False)
_SHIFTS = np.array([-0.004, 0.0, 0.004])


def _values(means) -> np.ndarray:
    """Returns almost equal values of three seeds in each domain."""
    rng = np.random.default_rng([round(1000 * mean) for mean in means])
    jitter = rng.uniform(-0.001, 0.001, size=[3, len(_NAMES)])
    return np.array(means) + _SHIFTS[:, None] + jitter - jitter.mean(axis=0)


def _trials(means, measure, noise) -> Trials:
    rng = np.random.default_rng([round(1000 * mean) for mean in means])
    values = _values(means)
    by_name = {name: {measure.name: values[:, i]} for i, name in enumerate(_NAMES)}
    by_name[OVERALL] = {measure.name: values.mean(axis=1)}
    pick = np.min if measure.higher_is_better else np.max
    by_name[WORST] = {measure.name: pick(values, axis=1)}
    four = np.column_stack([values, values.mean(axis=1)])
    drawn = [
        Resampled({measure.name: row + noise * rng.normal(size=[40, 4])}, np.full([4], 30.0))
        for row in four
    ]
    return Trials(by_name, [], resampled=drawn, seeds=[0, 1, 2])


def _comparison(rows, measure, noise=0.002) -> Comparison:
    trials = {row: _trials(means, measure, noise) for row, means in rows.items()}
    loss = {} if measure is _LOSS else {"loss": _LOSS}
    return Comparison(_NAMES, {**loss, measure.name: measure}, trials, {"fed_avg": "FedAvg"})


def _board(rows, measure, choice, noise=0.002) -> Board:
    data = DataSet("toys of three kinds", "digits", source="a shop")
    missing = {"last_layer": "its model has one layer"}
    return Board(data, _comparison(rows, measure, noise), choice, missing)


def test_payers_are_domains_that_are_significantly_worse():
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.799, 0.62)}
    assert _board(rows, _ACCURACY, "uniform").payers("uniform") == ["a"]
    assert _board(rows, _ACCURACY, "uniform", noise=0.2).payers("uniform") == []


@pytest.mark.parametrize(
    ("measure", "worsts", "noise", "expected"),
    [
        # The worst values are those of FedAvg, the choice and another method; the expected values
        # are (is_worse, best, is_near).
        (_ACCURACY, (0.5, 0.6, 0.615), 0.002, (False, "other", True)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.002, (False, "other", False)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.2, (False, "other", True)),
        (_ACCURACY, (0.6, 0.5, 0.55), 0.002, (True, "fed_avg", False)),
        (_ACCURACY, (0.5, 0.6, 0.6), 0.002, (False, "choice", True)),
        (_LOSS, (1.5, 1.2, 1.16), 0.002, (False, "other", True)),
        (_PERPLEXITY, (150.0, 110.0, 100.0), 0.1, (False, "other", False)),
    ],
)
def test_choice_is_compared_with_best_method(measure, worsts, noise, expected):
    good = 0.9 if measure.higher_is_better else 0.1
    rows = {row: (good, good, worst) for row, worst in zip(("fed_avg", "choice", "other"), worsts)}
    board = _board(rows, measure, "choice", noise)
    assert (board.is_worse, board.best, board.is_near) == expected


def test_page_lists_results_and_missing_files():
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.8, 0.62), "frozen": (0.7, 0.86, 0.69)}
    text = page({"toys": _board(rows, _ACCURACY, "uniform")}, {"adult": ("adult",)})
    words = " ".join(text.split())
    for part in (
        "- adult was not run: it needs adult",
        "toys of three kinds. Source: a shop.",
        "- last_layer has no result: its model has one layer",
        "| uniform (chosen) | 62.0 (c) | +12.0 points (",
        "| a | 3 |",
    ):
        assert part in words, part


def test_every_method_resolves_on_each_data_set():
    for name, data in DATA_SETS.items():
        check_task_options(data.task, data.task_options)
        for row in (row for row in PORTFOLIO if row not in IF_NAMED):
            arm = dict(WORDS[row].settings) if row in WORDS else {"algorithm": row}
            arm.pop("lambda_baselines", None)
            spec = resolve(data.task, arm, data.task_options, shared=dict(data.settings))
            assert spec.config.rounds == data.settings.get("rounds", spec.config.rounds), name


def test_shared_arguments_override_those_of_data_set():
    data = DATA_SETS["hard_digits"]
    given = data_arguments(data, {"task": "custom", "model": "model.py"}, {"tries": 2, "rounds": 7})
    assert (given.args.task, given.args.tries, given.args.objective) == ("custom", 2, "worst")
    assert given.settings == {**data.settings, "rounds": 7, "evaluate_every": 7}


def test_flights_without_plane_or_arrival_are_skipped(tmp_path):
    head = "month,day,hour,minute,dep_delay,distance,arr_delay,carrier,tailnum,origin"
    flights = ["1,2,3,4,5,600,15,UA,N1,EWR", "1,2,3,4,5,600,16,OO,N2,JFK"]
    flights += ["1,2,3,4,5,600,NA,UA,N1,EWR", "1,2,3,4,5,600,1,UA,,EWR"]
    (tmp_path / "flights.csv").write_text("\n".join([head, *flights]))
    first, *rows = map(list, DATA_SETS["flights"].table([tmp_path / "flights.csv"]))
    assert first[:4] == ["plane", "carrier", "late", "origin"]
    numbers = ["1", "2", "3", "4", "5", "600"]
    assert rows == [["N1", "UA", 0, "EWR", *numbers], ["N2", "regional", 1, "JFK", *numbers]]


def test_speeches_have_speakers_and_languages(tmp_path):
    for language in ("nl", "de"):
        rows = '"speaker","chair","text"\n"A. B.",FALSE,"One , two ."\n"C.",TRUE,"Order !"\n'
        (tmp_path / f"{language}.csv").write_text(rows)
    head, *rows = map(list, DATA_SETS["speeches"].table([tmp_path]))
    assert head == ["speaker", "language", "chair", "text"]
    assert rows[1:3] == [["de/C.", "de", 1, "Order !"], ["nl/A. B.", "nl", 0, "One , two ."]]


def test_languages_table_joins_three_sources(tmp_path):
    posts = tmp_path / "beer"
    posts.mkdir()
    row = '<row Id="1" PostTypeId="1" OwnerUserId="7" Body="&lt;p&gt;Is it cold?&lt;/p&gt;" />'
    (posts / "Posts.xml").write_text(f"<posts>{row}</posts>")
    (tmp_path / "plays").mkdir()
    (tmp_path / "plays" / "input.txt").write_text("KING:\nGo hence.\n\nQUEEN:\nI stay.\n")
    (tmp_path / "es" / "es-MX").mkdir(parents=True)
    (tmp_path / "es" / "es-MX" / "001.txt").write_text("No está . Bueno .")
    inputs = [posts, tmp_path / "plays", tmp_path / "es"]
    head, *rows = map(list, DATA_SETS["languages"].table(inputs))
    assert head == ["client", "language", "text"]
    assert {language for _, language, _ in rows} == {"english", "shakespeare", "spanish"}
    assert len(rows) == 5
    assert ["shakespeare/KING", "shakespeare", "Go hence ."] in rows


def test_table_is_written_once(tmp_path):
    calls = []

    def table(inputs):
        calls.append(list(inputs))
        yield "who", "kind", "label", "x"
        for k in range(40):
            yield f"u{k % 20}", "ab"[k % 2], k % 2, k

    raw = ImportOptions(
        format="csv",
        client_column="who",
        domain_column="kind",
        label_column="label",
        feature_columns=("x",),
        split=("train:0.5", "heldout:0.25", "test:0.25"),
    )
    data = DataSet("toys", "custom", ("here",), raw=raw, table=table, model="x = 1")
    assert data.lacks(None) == data.lacks(tmp_path) == ("here",)
    (tmp_path / "here").mkdir()
    assert data.lacks(tmp_path) == ()
    read = data.prepare(tmp_path, tmp_path / "made")
    assert data.prepare(tmp_path, tmp_path / "made") == read
    assert calls == [[tmp_path / "here"]]
    assert read["data"].exists() and "data_dir" not in read
    assert read["model"] == tmp_path / "made" / "model.py"
    with open(tmp_path / "made" / "table.csv", newline="") as file:
        assert len(list(csv.reader(file))) == 41
