"""Compares two checkouts by hashes of the files that the same commands write.

    python tools/ledger.py list
    python tools/ledger.py record CHECKOUT FILE [--only PATTERN ...]
    python tools/ledger.py compare BEFORE AFTER [--numbers]

An entry is a command on small inputs. `record` runs all entries in a checkout, with the checkout's
own environment, and writes two tables for each entry. The table "files" has a hash of each written
file. The table "numbers" has a hash of each result in these files: arrays of checkpoints and
exports, columns of CSV files, numbers of JSON files, and predictions of saved models on synthetic
inputs.

`compare` prints the differing entries and the places of their differences, and exits with status 1
if there are any. With `--numbers` it compares only the table "numbers", so names, layouts and
settings may differ. Record both checkouts on the same machine, because processors round
differently. A change that only moves code keeps all files equal.

The entries are three rounds of every algorithm with every kind of sum and noise, with vectorised
and streamed clients and a fixed noise key; the same rounds in TFF's runtime and in Ray's workers,
with plain sums; every other command; and an export of each kind. Times, pictures and folder names
are not hashed.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Files that are not hashed, because they contain pictures or times.
_NOT_HASHED = (
    *("*.png", "*.svg", "*.html", "*/tensorboard/*", "*.lock", "*.sqlite-journal", "*.db"),
    # This log contains the times at which trials began and ended.
    "*/journal.log",
)
# Files with settings and digests, but without results.
_WITHOUT_NUMBERS = ("*/config.json", "*/fingerprint.json", "*/resuming.json")
# Numbers in JSON files that are not results: settings, and file sizes that depend on names.
_NO_RESULTS = re.compile(r"\.json: \.(settings|task_options)[._]|\.num_bytes$")
# Keys in JSON files that have times or versions as their values.
_TIMES = re.compile(r"seconds|duration|created|^versions$|^time$|^command$|^date$")
# Names of CSV columns with times.
_TIME_COLUMNS = re.compile(r"seconds|time")
# Member of a checkpoint that is not an array of the state.
_HEADER = "header.npy"
_SAVED_MODEL = re.compile(r"^saved/.*(\.keras|\.tflite|/saved_model\.pb)$")
# Beginning of the recorded output if a command failed.
_FAILED = "exit status"
_THIS_FOLDER = Path(__file__).parent

# Maps entry, table ("files" or "numbers") and place to a hash.
Hashes = dict[str, dict[str, dict[str, str]]]


class Entry(NamedTuple):
    """A command that the ledger runs.

    Attributes:
        name: Name of the entry, by which --only selects entries.
        command: The command with its flags.
        after: Name of the entry whose folder the command uses; "" for a new folder.
    """

    name: str
    command: tuple[str, ...]
    after: str = ""

    @property
    def is_training(self) -> bool:
        """Whether the command runs in the process that all training entries share."""
        return self.command[0] == "train" and not self.after


_TOY = {
    "task": "toy_regression",
    "num_clients": 12,
    "clients_per_round": 5,
    "rounds": 3,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "client_batch_size": 4,
    "client_epochs": 2,
    "client_learning_rate": 0.05,
    "seed": 3,
}
_UNIGRAM = {
    "task": "unigram",
    "data": "texts.sqlite",
    "base_predictors": ("predictors.npz",),
    "clients_per_round": 3,
    "budget": 1,
    "rounds": 3,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "seed": 3,
}
# All algorithms, with settings that differ from the defaults.
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "agnostic_fed_avg": {**_TOY, "lambda_learning_rate": 0.1, "window": 2},
    "fed_avg": {**_TOY, "server_optimizer": "momentum"},
    "fed_avg_sub": {**_TOY, "cohort_share": 0.6},
    "fed_avg_target_only": {**_TOY, "target_domain": "noisy"},
    "fed_prox": {**_TOY, "mu": 0.7},
    "q_ffl": {**_TOY, "q": 1.5},
    "term": {**_TOY, "tilt": 1.5},
    "delta_fl": {**_TOY, "theta": (0.6, 1.0)},
    "stochastic_afl": {
        name: value
        for name, value in _TOY.items()
        if name not in ("client_epochs", "client_learning_rate", "client_batch_size")
    },
    "fed_boost": _UNIGRAM,
    "afl_boost": {**_UNIGRAM, "lambda_learning_rate": 0.1},
}
_SECURE = {"aggregation": "secure", "limit_examples": 40, "limit_loss": 10.0}
_BOUNDS = {"limit_examples": 40, "limit_loss": 10.0, "noise_seed": 5}
_SUMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "secure": _SECURE,
    "central": {**_BOUNDS, "privacy": "central", "noise_multiplier": 0.8, "clipping": "adaptive"},
    "joint": {**_BOUNDS, "privacy": "central", "noise_multiplier": 0.8, "joint_clipping": True},
    "central_secure": {**_BOUNDS, **_SECURE, "privacy": "central", "noise_multiplier": 0.8},
    "tree": {
        **_BOUNDS,
        "privacy": "tree",
        "noise_multiplier": 2.0,
        "cohort_sampling": "turns",
        "private_evaluation": "noise:multiplier=4.0",
    },
    "distributed": {**_BOUNDS, **_SECURE, "privacy": "distributed", "noise_multiplier": 0.8},
    "distributed_poisson": {
        **_BOUNDS,
        **_SECURE,
        "privacy": "distributed",
        "noise_multiplier": 0.8,
        "cohort_sampling": "poisson",
        "secure_min_clients": 1,
    },
    "distributed_chacha": {
        **_BOUNDS,
        **_SECURE,
        "privacy": "distributed",
        "noise_multiplier": 0.8,
        "noise_generator": "secure",
    },
}
_MODES = ("vectorised", "streamed")

_TOY_FLAGS = tuple(f"--{name}={value}" for name, value in _TOY.items())
# For each entry: its name, the name of the entry whose folder it uses ("-" for a new folder), and
# its command. Each of these commands runs in a separate process.
_COMMANDS = """
shell/train import_data train TOY --algorithm=agnostic_fed_avg --output_dir=run
evaluate train/delta_fl evaluate --checkpoint=run --training_clients
report train/agnostic_fed_avg report --run=run
save_model train/agnostic_fed_avg save_model --checkpoint=run
    --format=keras,saved_model,tflite --output_dir=saved
compare - compare TOY --algorithms=fed_avg,agnostic_fed_avg --trials=2 --output_dir=both
tune - tune --task=digits --heldout_share=0.2 --algorithms=fed_avg --trials=3 --rounds=2
    --evaluate_every=1 --output_dir=tuned --search=client_learning_rate=log:0.01..1
frontier - frontier TOY --algorithms=agnostic_fed_avg --trials=1 --grid_points=2
    --output_dir=frontier
privacy - privacy --clients=1000 --clients_per_round=50 --rounds=20 --noise_multiplier=1
    --privacy=distributed --output_dir=privacy
base_predictors - base_predictors --data=texts.sqlite --output=more_predictors.npz
reproduce - reproduce --experiment=adult --data_dir=adult --trials=1 --rounds=2 --evaluate_every=1
    --clients_per_round=2 --num_clients=6 --num_test_clients=4 --output_dir=reproduced
import_data - import_data --format=csv --input=rows.csv --output=s.sqlite --client_column=user
    --domain_column=country --feature_columns=a,b --label_column=y
export/daf train/agnostic_fed_avg export --checkpoint=run --profile=daf --clients_dir=clients
    --output_dir=plan_daf
export/secure train/agnostic_fed_avg_secure export --checkpoint=run --profile=secure
    --output_dir=plan_secure
export/private train/agnostic_fed_avg_tree export --checkpoint=run --profile=daf
    --output_dir=plan_private
export/evaluation train/agnostic_fed_avg export --checkpoint=run --kind=evaluation
    --output_dir=plan_evaluation
export/private_evaluation train/agnostic_fed_avg_tree export --checkpoint=run --kind=evaluation
    --output_dir=plan_private_evaluation
export/family train/delta_fl_lagged export --checkpoint=run --profile=daf --output_dir=plan_family
export/ensemble train/fed_boost export --checkpoint=run --profile=daf --output_dir=plan_ensemble
run_plan/verify export/daf run_plan --plan=plan_daf --verify
run_plan/rounds export/daf run_plan --plan=plan_daf --clients=clients
    --cohorts=clients/cohorts.txt --rounds=2 --output=after
import_state run_plan/rounds import_state --plan=plan_daf
    --server_state=after/server_state.ckpt --output_dir=back
"""


def entries() -> Iterator[Entry]:
    """Yields all entries; an entry comes after the entry whose folder it uses."""
    for algorithm, settings in _ALGORITHMS.items():
        for (sums, sum_settings), mode in itertools.product(_SUMS.items(), _MODES):
            name = f"round/{algorithm}/{sums}/{mode}"
            yield _training(name, algorithm, settings, sum_settings, {"client_mode": mode})
        yield _training(f"round/{algorithm}/tff", algorithm, settings, {"runtime": "tff"})
        ray = {"runtime": "ray", "num_workers": 1}
        yield _training(f"round/{algorithm}/ray", algorithm, settings, ray)
    trainings: dict[str, Mapping[str, Any]] = {
        "agnostic_fed_avg": {},
        "delta_fl": {},
        "fed_boost": {},
        "delta_fl_lagged": {"threshold": "lagged"},
        "agnostic_fed_avg_secure": _SECURE,
        "agnostic_fed_avg_tree": _SUMS["tree"],
    }
    for name, more in trainings.items():
        algorithm = next(a for a in _ALGORITHMS if name.startswith(a))
        yield _training(f"train/{name}", algorithm, _ALGORITHMS[algorithm], more)
    for line in re.split(r"\n(?! )", _COMMANDS.strip()):
        name, after, *command = line.replace("TOY", " ".join(_TOY_FLAGS)).split()
        yield Entry(name, tuple(command), after.strip("-"))


def _training(name: str, algorithm: str, *settings: Mapping[str, Any]) -> Entry:
    values = {k: v for table in settings for k, v in table.items()}
    flags = (f"--{name}={_flag_text(value)}" for name, value in values.items())
    return Entry(name, ("train", f"--algorithm={algorithm}", *flags, "--output_dir=run"))


def _flag_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def record(checkout: Path, patterns: Sequence[str]) -> Hashes:
    """Runs the entries that match patterns in a checkout, and returns their hashes."""
    chosen = [e for e in entries() if any(fnmatch.fnmatch(e.name, p) for p in patterns)]
    needed = {e.after for e in chosen}
    # Add the entries on which the chosen entries depend.
    while more := [e for e in entries() if e.name in needed and e not in chosen]:
        chosen += more
        needed |= {e.after for e in more}
    chosen = [e for e in entries() if e in chosen]
    hashes: Hashes = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        book = _Ledger(checkout, folder)
        book.make_inputs()
        hashes.update(book.train([e for e in chosen if e.is_training]))
        for entry in chosen:
            if not entry.is_training:
                hashes[entry.name] = book.call(entry)
    return hashes


class _Ledger:
    """Runs entries of a checkout, in subfolders of one folder."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._checkout = checkout
        self._folder = folder
        self._predictions: dict[str, str] = {}

    def make_inputs(self) -> None:
        texts = ["user,country,split,words"]
        rows = ["user,country,a,b,y"]
        for k in range(24):
            split = ("train", "train", "test")[k // 8]
            words = " ".join(f"w{(k * i * i) % (3 if k % 2 else 7)}" for i in range(1, 13))
            texts.append(f"u{k},{'ab'[k % 2]},{split},{words}")
            rows += [
                f"u{k % 9},{'ab'[k % 2]},{i / 7:.3f},{k / 5:.3f},{(i + k) % 2}" for i in range(4)
            ]
        adult = self._folder / "adult"
        adult.mkdir()
        people = [
            f"{25 + k}, Private, {k}, {education}, 13, Divorced, Sales, Husband, White, Male, 0, 0,"
            f" {20 + k % 30}, United-States, {'<=50K' if k % 3 else '>50K'}"
            for k, education in enumerate(("Bachelors", "Doctorate", "Masters") * 8)
        ]
        (adult / "adult.data").write_text("\n".join(people))
        (adult / "adult.test").write_text("\n".join(f"{row}." for row in people))
        (self._folder / "texts.csv").write_text("\n".join(texts) + "\n")
        (self._folder / "rows.csv").write_text("\n".join(rows) + "\n")
        columns = ("--client_column=user", "--domain_column=country", "--split_column=split")
        flags = ("--format=csv", "--input=texts.csv", "--text_column=words", *columns)
        self._run(self._folder, "import_data", *flags, "--output=texts.sqlite")
        predictors = ("--data=texts.sqlite", "--output=predictors.npz")
        self._run(self._folder, "base_predictors", *predictors)

    def train(self, trainings: Sequence[Entry]) -> Hashes:
        """Runs all training entries in one process, so that they share traced functions."""
        calls = []
        for entry in trainings:
            self._link_inputs(self._path(entry.name))
            calls.append((self._path(entry.name).as_posix(), entry.command[1:]))
        self._python("train_all", json.dumps(calls))
        return {e.name: self._hashes(self._path(e.name)) for e in trainings}

    def call(self, entry: Entry) -> dict[str, dict[str, str]]:
        """Runs an entry's command, and returns the hashes of changed files and numbers."""
        path = self._path(self._owner(entry))
        self._link_inputs(path)
        before = self._hashes(path)
        printed = self._run(path, *entry.command)
        failed = printed.startswith(_FAILED)
        print(f"{entry.name}: {printed if failed else 'done'}", file=sys.stderr)
        changed = {
            table: {k: v for k, v in rows.items() if before[table].get(k) != v}
            for table, rows in self._hashes(path).items()
        }
        if failed:
            changed["numbers"]["failed"] = _digest(printed.split(":")[0].encode())
        if failed or entry.command[0] in ("evaluate", "run_plan", "privacy"):
            text = printed.replace(str(self._folder), "FOLDER")
            changed["files"]["printed"] = _digest(text.encode())
        return changed

    def _link_inputs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for name in ("rows.csv", "texts.sqlite", "predictors.npz", "adult"):
            if not (path / name).exists():
                (path / name).symlink_to(self._folder / name)

    def _run(self, folder: Path, *command: str) -> str:
        done = subprocess.run(
            [str(self._checkout / "run"), *command],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"{_FAILED} {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        return done.stdout

    def _python(self, function: str, stdin: str) -> str:
        """Calls a function of this module in a process that imports the checkout."""
        code = f"import sys; sys.path[:0] = sys.argv[1:3]; import ledger; ledger.{function}()"
        done = subprocess.run(
            [self._checkout / ".venv/bin/python", "-c", code, self._checkout, _THIS_FOLDER],
            cwd=self._folder,
            # Set these variables for the worker processes of Ray and TFF, which inherit them.
            env={**os.environ, "PYTHONPATH": str(self._checkout), "TF_CPP_MIN_LOG_LEVEL": "3"},
            input=stdin,
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        return done.stdout

    def _owner(self, entry: Entry) -> str:
        """Returns the name of the entry whose folder a given entry uses."""
        first = next((e for e in entries() if e.name == entry.after), None)
        return entry.name if first is None else self._owner(first)

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "-")

    def _hashes(self, path: Path) -> dict[str, dict[str, str]]:
        names = {
            file.relative_to(path).as_posix(): file
            for file in sorted(path.rglob("*"))
            if file.is_file() and not file.is_symlink()
        }
        hashed = {n: f for n, f in names.items() if not _matches(n, _NOT_HASHED)}
        numbers: dict[str, str] = {}
        for name, file in hashed.items():
            if not _matches(name, _WITHOUT_NUMBERS):
                numbers |= {f"{name}: {k}": _digest(v) for k, v in _numbers(file)}
        saved = [f"{path / name}" for name in names if re.search(_SAVED_MODEL, name)]
        if new := [model for model in saved if model not in self._predictions]:
            self._predictions |= json.loads(self._python("predict_all", json.dumps(new)))
        for model in saved:
            place = f"{Path(model).relative_to(path)}: predictions"
            numbers[place] = self._predictions[model]
        files = {name: _hash(file, str(self._folder)) for name, file in hashed.items()}
        return {"files": files, "numbers": numbers}


def train_all() -> None:
    """Runs the training entries that standard input lists, each in its folder."""
    from binaries import train
    from tests.support.commands import Caller

    call = Caller({})
    for number, (folder, flags) in enumerate(calls := json.load(sys.stdin), 1):
        print(f"{number}/{len(calls)} {Path(folder).name}", file=sys.stderr)
        os.chdir(folder)
        outcome = call(train, *flags)
        if outcome.status:
            # Record the error, because not every algorithm supports every kind of sum.
            Path("refused.txt").write_text(f"{outcome.error}\n")
            print(f"   refused: {outcome.error}", file=sys.stderr)


def predict_all() -> None:
    """Prints hashes of the predictions of saved models on synthetic inputs."""
    import numpy as np
    import tensorflow as tf

    def inputs(shape: Sequence[Any], dtype: Any) -> Any:
        """Returns three examples of small integers, which are valid token ids and numbers."""
        sizes = (3, *(4 if size in (None, -1) else size for size in shape[1:]))
        return (np.arange(np.prod(sizes)).reshape(sizes) % 3).astype(dtype)

    hashes = {}
    for name in json.load(sys.stdin):
        if name.endswith(".keras"):
            model = tf.keras.models.load_model(name, compile=False)
            outputs = model(inputs(model.input_shape, model.input.dtype.name))
        elif name.endswith(".pb"):
            model = tf.saved_model.load(str(Path(name).parent))
            serve = model.signatures["serving_default"]
            specs = serve.structured_input_signature[1]
            arrays = {k: tf.constant(inputs(s.shape, s.dtype.name)) for k, s in specs.items()}
            outputs = serve(**arrays)
        else:
            lite = tf.lite.Interpreter(name)
            (spec,) = lite.get_input_details()
            array = inputs(spec["shape_signature"], spec["dtype"])
            lite.resize_tensor_input(spec["index"], array.shape)
            lite.allocate_tensors()
            lite.set_tensor(spec["index"], array)
            lite.invoke()
            outputs = [lite.get_tensor(o["index"]) for o in lite.get_output_details()]
        flat = [np.asarray(output) for output in tf.nest.flatten(outputs)]
        hashes[name] = _digest(*(part for array in flat for part in _array_parts(array)))
    print(json.dumps(hashes))


def _array_parts(array: Any) -> tuple[bytes, ...]:
    return str(array.dtype).encode(), repr(array.shape).encode(), array.tobytes()


def _numbers(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the name and bytes of each array, column or number in a file."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".npy") and name != _HEADER:
                    yield name, archive.read(name)
    elif path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        for column in rows[0] if rows else ():
            if not _is_time(column):
                yield column, json.dumps([row[column] for row in rows]).encode()
    elif path.suffix == ".json":
        yield from _json_numbers(_without_times(json.loads(path.read_bytes())), "")
    elif path.suffix in (".ckpt", ".refused") or path.name == "refused.txt":
        yield path.name, path.read_bytes() if path.suffix == ".ckpt" else b""


def _json_numbers(value: Any, place: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _json_numbers(item, f"{place}.{key}")
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield from _json_numbers(item, f"{place}[{k}]")
    # Skip file sizes, which change with the names in the files.
    elif isinstance(value, (int, float)) and type(value) is not bool and place[-5:] != "bytes":
        yield place, repr(value).encode()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(f"/{name}", pattern) for pattern in patterns)


def _hash(path: Path, folder: str) -> str:
    """Returns the hash of a file's content, except for folder names and times."""
    if path.suffix in (".npz", ".keras", ".zip"):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in sorted(archive.namelist())}
        members.pop("metadata.json", None)
        return _digest(*(part for pair in members.items() for part in (pair[0].encode(), pair[1])))
    content = path.read_bytes().replace(folder.encode(), b"FOLDER")
    if path.suffix == ".json":
        return _digest(json.dumps(_without_times(json.loads(content)), sort_keys=True).encode())
    if path.suffix == ".csv":
        rows = [line.split(",") for line in content.decode().splitlines()]
        kept = [k for k, column in enumerate(rows[0] if rows else ()) if not _is_time(column)]
        return _digest(*(",".join(row[k] for k in kept if k < len(row)).encode() for row in rows))
    return _digest(content)


def _is_time(column: str) -> bool:
    return bool(_TIME_COLUMNS.search(column))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if not _TIMES.search(k)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def compare(before: Hashes, after: Hashes, tables: Sequence[str]) -> list[str]:
    """Returns a line for each entry that differs in a table, or that one checkout lacks."""
    lines = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            lines.append(f"{name}: only {'after' if name in after else 'before'}")
            continue
        pairs = [(before[name][table], after[name][table]) for table in tables]
        places = sorted(k for a, b in pairs for k in {*a, *b} if a.get(k) != b.get(k))
        if tables == ("numbers",):
            places = [place for place in places if not _NO_RESULTS.search(place)]
        if places:
            lines.append(f"{name}: {', '.join(dict.fromkeys(places))}")
    return lines


def main() -> int:
    """Runs a command of this script, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run entries in a checkout, write their hashes")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", nargs="+", default=["*"], help="patterns of entries' names")
    comparing = commands.add_parser("compare", help="print the entries that differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--numbers", action="store_true", help="numbers alone, not files")
    commands.add_parser("list", help="print the names of all entries")
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(entry.name for entry in entries()))
        return 0
    if arguments.command == "record":
        hashes = record(arguments.checkout.resolve(), arguments.only)
        arguments.file.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")
        print(f"{len(hashes)} entries: {arguments.file}")
        return 0
    before, after = (json.loads(path.read_text()) for path in (arguments.before, arguments.after))
    lines = compare(before, after, ("numbers",) if arguments.numbers else ("files", "numbers"))
    print("\n".join(lines) if lines else f"all {len(before)} entries are equal")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
