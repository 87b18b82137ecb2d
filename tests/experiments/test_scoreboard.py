"""The scoreboard's numbers, from arrays; its page; and the tables of its data sets."""

import csv
import json
import math

import numpy as np
import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure
from tff_agnostic.program.experiments.reproduce import REPRODUCE
from tff_agnostic.program.experiments.scoreboard import given_to_recommend
from tff_agnostic.program.experiments.scoreboard_data import DATA_SETS, DataSet, Prepared
from tff_agnostic.program.experiments.scoreboard_page import (
    Board,
    board_from_json,
    board_to_json,
    line,
    page,
    payers,
    standing,
)
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
    """Returns what three seeds attain in each domain: nearly the same."""
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
        Resampled({measure.name: of + noise * rng.normal(size=[40, 4])}, np.full([4], 30.0))
        for of in four
    ]
    return Trials(by_name, [], resampled=drawn, seeds=[0, 1, 2])


def _comparison(rows, measure, noise=0.002) -> Comparison:
    trials = {row: _trials(means, measure, noise) for row, means in rows.items()}
    loss = {} if measure is _LOSS else {"loss": _LOSS}
    return Comparison(_NAMES, {**loss, measure.name: measure}, trials, {"fed_avg": "FedAvg"})


def test_a_line_by_hand():
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.8, 0.62), "frozen": (0.7, 0.86, 0.6)}
    of = line(_comparison(rows, _ACCURACY), "uniform", _ACCURACY, 3, 12.0)
    assert (of.label, of.settings, of.seeds, of.seconds) == ("uniform", 3, 3, 12.0)
    assert (of.worst, of.worst_domain) == (pytest.approx(0.62), "c")
    assert of.gain == pytest.approx(0.12)
    low, high = of.interval
    assert 0.1 < low < 0.12 < high < 0.14
    # The best in a is FedAvg's, in b frozen's, in c its own: it lacks .06 in a and in b.
    best = np.max(list(rows.values()), axis=0)
    assert of.regret == pytest.approx(-(_values(rows["uniform"]) - best).min(axis=1).mean())
    assert of.overall == pytest.approx(np.mean(rows["uniform"]))
    assert of.pays == ("a",)


def test_the_regret_of_a_loss_is_what_it_has_more():
    rows = {"fed_avg": (0.3, 0.4, 1.5), "uniform": (0.5, 0.4, 1.0)}
    comparison = _comparison(rows, _LOSS)
    assert line(comparison, "uniform", _LOSS, 1, 0.0).regret == pytest.approx(0.2, abs=0.01)
    of = line(comparison, "fed_avg", _LOSS, 1, 0.0)
    assert of.regret == pytest.approx(0.5, abs=0.01)
    assert (of.gain, of.interval, of.pays) == (0.0, None, ())


def test_who_pays_is_shown_for_all_domains_at_once():
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.799, 0.62)}
    assert payers(_comparison(rows, _ACCURACY), "uniform", _ACCURACY) == ("a",)
    # With other clients it could be anything.
    assert payers(_comparison(rows, _ACCURACY, noise=0.2), "uniform", _ACCURACY) == ()


@pytest.mark.parametrize(
    ("measure", "worsts", "noise", "found"),
    [
        # FedAvg, the choice, another row: (is worse than FedAvg, best row, distance, is near).
        (_ACCURACY, (0.5, 0.6, 0.615), 0.002, (False, "other", 0.015, True)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.002, (False, "other", 0.05, False)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.2, (False, "other", 0.05, True)),
        (_ACCURACY, (0.6, 0.5, 0.55), 0.002, (True, "fed_avg", 0.1, False)),
        (_ACCURACY, (0.5, 0.6, 0.6), 0.002, (False, "choice", 0.0, True)),
        (_LOSS, (1.5, 1.2, 1.16), 0.002, (False, "other", 0.04, True)),
        (_LOSS, (1.5, 1.2, 1.1), 0.002, (False, "other", 0.1, False)),
        # 4% and 10% of a perplexity are .039 and .095 nats.
        (_PERPLEXITY, (150.0, 104.0, 100.0), 0.1, (False, "other", math.log(1.04), True)),
        (_PERPLEXITY, (150.0, 110.0, 100.0), 0.1, (False, "other", math.log(1.1), False)),
    ],
)
def test_how_the_choice_stands(measure, worsts, noise, found):
    good = 0.9 if measure.higher_is_better else 0.1
    rows = {row: (good, good, worst) for row, worst in zip(("fed_avg", "choice", "other"), worsts)}
    of = standing(_comparison(rows, measure, noise=noise), "choice", measure)
    assert (of.is_worse, of.best, of.is_near) == (found[0], found[1], found[3])
    assert of.behind == pytest.approx(found[2], abs=1e-3)


def _board(choice="uniform") -> Board:
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.8, 0.62), "frozen": (0.7, 0.86, 0.69)}
    comparison = _comparison(rows, _ACCURACY)
    lines = {row: line(comparison, row, _ACCURACY, 2, 10.0) for row in rows}
    return Board(
        title="toys of three kinds",
        source="a shop",
        measure="accuracy",
        unit=Unit.SHARE,
        judges="20 validation clients judge",
        lines=lines,
        choice=choice,
        chosen=["Recommended: uniform."],
        standing=standing(comparison, choice, _ACCURACY),
        why="On the validation clients it was given up: worse than FedAvg.",
        best_settings={"frozen": "--client_learning_rate=2"},
        left_out={"last_layer": "its model has one layer"},
        settings=2,
        seeds=3,
        seconds=40.0,
        of_recommend=25.0,
        date="2026-11-26",
    )


def test_the_page_says_what_was_found_and_what_was_not_run():
    board = board_from_json(json.loads(json.dumps(board_to_json(_board()))))
    assert board_to_json(board) == json.loads(json.dumps(board_to_json(_board())))
    text = page("./run reproduce", {"toys": board}, {"adult": "needs adult"}, ["Short."], "Why.")
    words = " ".join(text.split())
    for part in (
        "```sh ./run reproduce ```",
        "- Short.",
        "- `adult`: not run: needs adult",
        "On 0 of 1 data sets `recommend` is worse than FedAvg",
        "On 1 it misses its aim (toys): it is behind",
        "- Toys of three kinds. Made from a shop. 20 validation clients judge.",
        "- At most 2 settings of a row, 3 seeds, 40 seconds; 2026-11-26.",
        "- Best at another setting than the first: frozen `--client_learning_rate=2`.",
        "- last_layer has no line: its model has one layer.",
        "| uniform | 62.0 (c) | +12.0 (",
        # Two settings each of three rows.
        "| recommend: uniform | 62.0 (c) | +12.0 (",
        "| a | 6 | 3 | 25 |",
        "Recommended: uniform. On the test clients the choice is not shown to be worse",
        "frozen is better there by 7.0 points (",
        "which is not within the aim. On the validation clients it was given up: worse than",
        "## What agrees and what does not Why.",
    ):
        assert part in words, part


def test_what_another_version_kept_is_told():
    content = board_to_json(_board())
    del content["source"]
    with pytest.raises(UserError, match=r"^expected what this version keeps of a data set"):
        board_from_json(content)


def test_what_each_data_set_gives_is_a_run_of_every_row():
    for name, of in DATA_SETS.items():
        check_task_options(of.task, of.of_task)
        for row in (row for row in PORTFOLIO if row not in IF_NAMED):
            arm = dict(WORDS[row].settings) if row in WORDS else {"algorithm": row}
            arm.pop("lambda_baselines", None)
            spec = resolve(of.task, arm, of.of_task, shared=dict(of.settings))
            assert spec.config.rounds == of.settings.get("rounds", spec.config.rounds), name


def test_data_sets_share_the_hours_and_what_was_given_is_of_all():
    arguments = {"experiment": "scoreboard", "hours": 6.0, "tries": 2, "rounds": 7}
    given = REPRODUCE.given_by(arguments, show_progress=False)
    read = Prepared(None, None, {"model": "model.py"})
    inner = given_to_recommend(given, "hard_digits", read, 3)
    assert (inner.own.task, inner.own.hours, inner.own.tries) == ("custom", 2.0, 2)
    assert inner.own.objective == "worst"
    # What was given is taken in place of the data set's own.
    expected = {**DATA_SETS["hard_digits"].settings, "rounds": 7, "evaluate_every": 7}
    assert inner.settings == expected
    assert inner.of_tasks == {"model": "model.py"}


def test_flights_have_a_plane_and_arrived(tmp_path):
    head = "month,day,hour,minute,dep_delay,distance,arr_delay,carrier,tailnum,origin"
    flights = ["1,2,3,4,5,600,15,UA,N1,EWR", "1,2,3,4,5,600,16,OO,N2,JFK"]
    flights += ["1,2,3,4,5,600,NA,UA,N1,EWR", "1,2,3,4,5,600,1,UA,,EWR"]
    (tmp_path / "flights.csv").write_text("\n".join([head, *flights]))
    first, *rows = map(list, DATA_SETS["flights"].table([tmp_path / "flights.csv"]))
    assert first[:4] == ["plane", "carrier", "late", "origin"]
    numbers = ["1", "2", "3", "4", "5", "600"]
    assert rows == [["N1", "UA", 0, "EWR", *numbers], ["N2", "regional", 1, "JFK", *numbers]]


def test_speeches_are_of_speakers_of_a_language(tmp_path):
    for language in ("nl", "de"):
        rows = '"speaker","chair","text"\n"A. B.",FALSE,"One , two ."\n"C.",TRUE,"Order !"\n'
        (tmp_path / f"{language}.csv").write_text(rows)
    head, *rows = map(list, DATA_SETS["speeches"].table([tmp_path]))
    assert head == ["speaker", "language", "chair", "text"]
    assert rows[1:3] == [["de/C.", "de", 1, "Order !"], ["nl/A. B.", "nl", 0, "One , two ."]]


def test_three_languages_are_one_table(tmp_path):
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


def test_a_table_is_made_once(tmp_path):
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
    of = DataSet("toys", "custom", ("here",), raw=raw, table=table, model="x = 1")
    assert of.lacks(None) == of.lacks(tmp_path) == ("here",)
    (tmp_path / "here").mkdir()
    (tmp_path / "made").mkdir()
    assert of.lacks(tmp_path) == ()
    read = of.prepare(tmp_path, tmp_path / "made")
    assert of.prepare(tmp_path, tmp_path / "made") == read
    assert calls == [[tmp_path / "here"]]
    assert read.data.exists() and read.data_dir is None
    assert read.of_task == {"model": str(tmp_path / "made" / "model.py")}
    with open(tmp_path / "made" / "table.csv", newline="") as file:
        assert len(list(csv.reader(file))) == 41
