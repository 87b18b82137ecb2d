"""Whether two checkouts compute the same: hashes of what the same commands leave in each.

    python tools/ledger.py list
    python tools/ledger.py record CHECKOUT FILE [--only PATTERN ...]
    python tools/ledger.py compare BEFORE AFTER

`record` runs every entry in a checkout, with the checkout's own environment, and writes a hash of
each file that the entry leaves. `compare` prints which entries differ, and in which files; its exit
status is 1 if any does. Record both sides on one machine: processors round differently, so hashes
are never checked in. A change that moves code leaves all hashes equal; one that changes numbers on
purpose names its entries.

Entries are three rounds of every algorithm with every kind of sum and of noise, clients vectorised
and one after another, with a fixed key of the noise; once in TFF's runtime and in Ray's workers;
every command on small inputs; an export of each kind. Each entry names all of its flags. Times,
pictures and names of folders are left out. This script reads nothing of the package but what users
call: `tff_agnostic.api.train`, and `./run COMMAND`.
"""

import argparse
import fnmatch
import hashlib
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

# Of what is hashed: times, pictures, logs, and pages that show both.
_LEFT_OUT = (
    *("*.png", "*.svg", "*.html", "*/tensorboard/*", "*.lock", "*.sqlite-journal", "*.db"),
    # When trials began and ended; how many minutes an experiment took.
    *("*/studies.sqlite", "*/page.md"),
)
# Keys of JSON files that hold times or versions.
_TIMES = re.compile(r"seconds|duration|created|^versions$|^time$|^command$|^date$")
# Columns of CSV files that hold times.
_TIME_COLUMNS = re.compile(r"seconds|time")


# How what a command prints begins that has failed.
_FAILED = "exit status"


class Entry(NamedTuple):
    """One line of the ledger.

    Attributes:
        name: Its name, for patterns.
        arguments: Of `api.train`; empty for a command.
        command: A command and its flags; empty for a training.
        after: The entry in whose folder it runs; "" for a folder of its own.
    """

    name: str
    arguments: Mapping[str, Any]
    command: tuple[str, ...] = ()
    after: str = ""


_TOY = {
    "task": "toy_regression",
    "toy_regression_num_clients": 12,
    "clients_per_round": 5,
    "rounds": 3,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "batch_size": 4,
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
# Every algorithm with settings that are no defaults.
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "agnostic_fed_avg": {**_TOY, "domain_learning_rate": 0.1, "window": 2},
    "fed_avg": {**_TOY, "server_optimizer": "momentum"},
    "fed_avg_sub": {**_TOY, "cohort_share": 0.6},
    "fed_avg_target_only": {**_TOY, "target_domain": "noisy"},
    "fed_prox": {**_TOY, "mu": 0.7},
    "q_ffl": {**_TOY, "q": 1.5},
    "term": {**_TOY, "tilt": 1.5},
    "delta_fl": {**_TOY, "conformity": (0.6, 1.0)},
    "stochastic_afl": {
        name: value for name, value in _TOY.items() if name not in ("client_epochs",)
    },
    "fed_boost": _UNIGRAM,
    "afl_boost": {**_UNIGRAM, "domain_learning_rate": 0.1},
}
_SECURE = {"aggregation": "secure", "secure_max_examples": 40, "secure_max_loss": 10.0}
_BOUNDS = {"secure_max_examples": 40, "secure_max_loss": 10.0, "noise_seed": 5}
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
        "private_evaluation": True,
        "evaluation_noise_multiplier": 4.0,
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
_PRIVATE_TREE = {**_ALGORITHMS["agnostic_fed_avg"], **_SUMS["tree"]}

_TOY_FLAGS = tuple(f"--{name}={value}" for name, value in _TOY.items())
_COMMANDS = (
    Entry("train", {}, ("train", *_TOY_FLAGS, "--algorithm=agnostic_fed_avg", "--output_dir=run")),
    Entry("evaluate", {}, ("evaluate", "--checkpoint=run", "--training_clients"), "train/delta_fl"),
    Entry("report", {}, ("report", "--run=run"), "train/agnostic_fed_avg"),
    Entry(
        "save_model",
        {},
        (
            "save_model",
            "--checkpoint=run",
            "--format=keras,saved_model,tflite",
            "--output_dir=saved",
        ),
        "train/agnostic_fed_avg",
    ),
    Entry(
        "compare",
        {},
        (
            "compare",
            *_TOY_FLAGS,
            "--algorithms=fed_avg,agnostic_fed_avg",
            "--trials=2",
            "--output_dir=both",
        ),
    ),
    Entry(
        "tune",
        {},
        (
            *("tune", "--task=digits", "--digits_heldout_share=0.2", "--algorithms=fed_avg"),
            *("--trials=3", "--rounds=2", "--evaluate_every=1", "--output_dir=tuned"),
            "--search=client_learning_rate=log:0.01..1",
        ),
    ),
    Entry(
        "frontier",
        {},
        (
            *("frontier", *_TOY_FLAGS, "--algorithms=agnostic_fed_avg", "--trials=1"),
            *("--grid_points=2", "--output_dir=frontier"),
        ),
    ),
    Entry(
        "privacy",
        {},
        (
            *("privacy", "--clients=1000", "--clients_per_round=50", "--rounds=20"),
            *("--noise_multiplier=1", "--privacy=distributed", "--output_dir=privacy"),
        ),
    ),
    Entry(
        "base_predictors",
        {},
        ("base_predictors", "--data=texts.sqlite", "--output=more_predictors.npz"),
    ),
    Entry(
        "reproduce",
        {},
        (
            *("reproduce", "--experiment=adult", "--data_dir=adult", "--trials=1", "--rounds=2"),
            *("--evaluate_every=1", "--clients_per_round=2", "--adult_num_clients=6"),
            *("--adult_num_test_clients=4", "--output_dir=reproduced"),
        ),
    ),
    Entry(
        "import_data",
        {},
        (
            "import_data",
            "--format=csv",
            "--input=rows.csv",
            "--output=s.sqlite",
            *(
                "--client_column=user",
                "--domain_column=country",
                "--feature_columns=a,b",
                "--label_column=y",
            ),
        ),
    ),
    *(
        Entry(
            f"export/{name}",
            {},
            ("export", "--checkpoint=run", *flags, f"--output_dir=plan_{name}"),
            of,
        )
        for name, of, flags in (
            ("daf", "train/agnostic_fed_avg", ("--profile=daf", "--clients_dir=clients")),
            ("secure", "train/agnostic_fed_avg_secure", ("--profile=secure",)),
            ("private", "train/agnostic_fed_avg_tree", ("--profile=daf",)),
            ("evaluation", "train/agnostic_fed_avg", ("--kind=evaluation",)),
            ("private_evaluation", "train/agnostic_fed_avg_tree", ("--kind=evaluation",)),
            ("family", "train/delta_fl_lagged", ("--profile=daf",)),
            ("ensemble", "train/fed_boost", ("--profile=daf",)),
        )
    ),
    Entry("run_plan/verify", {}, ("run_plan", "--plan=plan_daf", "--verify"), "export/daf"),
    Entry(
        "run_plan/rounds",
        {},
        (
            *("run_plan", "--plan=plan_daf", "--clients=clients"),
            *("--cohorts=clients/cohorts.txt", "--rounds=2", "--output=after"),
        ),
        "export/daf",
    ),
    Entry(
        "import_state",
        {},
        (
            *("import_state", "--plan=plan_daf", "--server_state=after/server_state.ckpt"),
            "--output_dir=back",
        ),
        "run_plan/rounds",
    ),
)


def entries() -> Iterator[Entry]:
    """Yields all entries; one that another stands on comes after it."""
    for algorithm, settings in _ALGORITHMS.items():
        for sums, of_sums in _SUMS.items():
            for mode in _MODES:
                name = f"round/{algorithm}/{sums}/{mode}"
                yield Entry(
                    name, {**settings, **of_sums, "algorithm": algorithm, "client_mode": mode}
                )
        for runtime in ("tff", "ray"):
            more = {"num_workers": 1} if runtime == "ray" else {}
            with_runtime = {**settings, "algorithm": algorithm, "runtime": runtime, **more}
            yield Entry(f"round/{algorithm}/{runtime}", with_runtime)
    for algorithm in ("agnostic_fed_avg", "delta_fl", "fed_boost"):
        yield Entry(f"train/{algorithm}", {**_ALGORITHMS[algorithm], "algorithm": algorithm})
    lagged = {**_ALGORITHMS["delta_fl"], "algorithm": "delta_fl", "threshold": "lagged"}
    yield Entry("train/delta_fl_lagged", lagged)
    secure = {**_ALGORITHMS["agnostic_fed_avg"], **_SECURE, "algorithm": "agnostic_fed_avg"}
    yield Entry("train/agnostic_fed_avg_secure", secure)
    tree = {**_PRIVATE_TREE, "algorithm": "agnostic_fed_avg"}
    yield Entry("train/agnostic_fed_avg_tree", tree)
    yield from _COMMANDS


def record(checkout: Path, patterns: Sequence[str]) -> dict[str, dict[str, str]]:
    """Runs entries in a checkout; returns the hash of each file that they leave, by entry."""
    chosen = [e for e in entries() if any(fnmatch.fnmatch(e.name, p) for p in patterns)]
    needed = {e.after for e in chosen}
    # What a command reads is made first, also by entries that nobody asked for.
    while more := [e for e in entries() if e.name in needed and e not in chosen]:
        chosen += more
        needed |= {e.after for e in more}
    chosen = [e for e in entries() if e in chosen]
    hashes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_inputs(checkout, folder)
        trainings = [e for e in chosen if not e.command]
        hashes.update(_trained(checkout, folder, trainings))
        for entry in chosen:
            if entry.command:
                hashes[entry.name] = _called(checkout, folder, entry)
    return hashes


def _make_inputs(checkout: Path, folder: Path) -> None:
    texts = ["user,country,split,words"]
    rows = ["user,country,a,b,y"]
    for k in range(24):
        split = ("train", "train", "test")[k // 8]
        words = " ".join(f"w{(k * i * i) % (3 if k % 2 else 7)}" for i in range(1, 13))
        texts.append(f"u{k},{'ab'[k % 2]},{split},{words}")
        rows += [f"u{k % 9},{'ab'[k % 2]},{i / 7:.3f},{k / 5:.3f},{(i + k) % 2}" for i in range(4)]
    adult = folder / "adult"
    adult.mkdir()
    people = [
        f"{25 + k}, Private, {k}, {education}, 13, Divorced, Sales, Husband, White, Male, 0, 0, "
        f"{20 + k % 30}, United-States, {'<=50K' if k % 3 else '>50K'}"
        for k, education in enumerate(("Bachelors", "Doctorate", "Masters") * 8)
    ]
    (adult / "adult.data").write_text("\n".join(people))
    (adult / "adult.test").write_text("\n".join(f"{row}." for row in people))
    (folder / "texts.csv").write_text("\n".join(texts) + "\n")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    columns = ("--client_column=user", "--domain_column=country", "--split_column=split")
    made = ("--format=csv", "--input=texts.csv", "--text_column=words", "--output=texts.sqlite")
    _run(checkout, folder, "import_data", *made, *columns)
    _run(checkout, folder, "base_predictors", "--data=texts.sqlite", "--output=predictors.npz")


def _run(checkout: Path, folder: Path, *command: str) -> str:
    found = subprocess.run(
        [str(checkout / "run"), *command], cwd=folder, capture_output=True, text=True, check=False
    )
    if found.returncode:
        return f"{_FAILED} {found.returncode}: {found.stderr.strip().splitlines()[-1:]}"
    return found.stdout


def _trained(checkout: Path, folder: Path, trainings: Sequence[Entry]) -> dict[str, dict[str, str]]:
    """Runs all trainings in one process of the checkout: what was traced serves several."""
    tasks = [(_folder_of(e.name, folder).as_posix(), dict(e.arguments)) for e in trainings]
    code = "import sys; sys.path[:0] = sys.argv[1:3]; import ledger; ledger.train_all()"
    here = str(Path(__file__).parent)
    subprocess.run(
        [str(checkout / ".venv/bin/python"), "-c", code, str(checkout), here],
        cwd=folder,
        # Workers of Ray and TFF are processes of their own.
        env={**os.environ, "PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"},
        input=json.dumps(tasks),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {e.name: _hashes(_folder_of(e.name, folder), folder) for e in trainings}


def train_all() -> None:
    """In a process of a checkout: trains what standard input lists, each in its folder."""
    from tff_agnostic import api
    from tff_agnostic.errors import UserError

    for number, (name, arguments) in enumerate(tasks := json.load(sys.stdin), 1):
        print(f"{number}/{len(tasks)} {Path(name).name}", file=sys.stderr)
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
        try:
            api.train(**values, output_dir=folder / "run", show_progress=False)
        except UserError as e:
            # Not every algorithm takes every kind of sum: what is refused is part of the ledger.
            (folder / "refused.txt").write_text(f"{e}\n")
            print(f"   refused: {e}", file=sys.stderr)


def _called(checkout: Path, folder: Path, entry: Entry) -> dict[str, str]:
    own = _folder_of(_owner(entry), folder)
    own.mkdir(parents=True, exist_ok=True)
    for name in ("rows.csv", "texts.sqlite", "predictors.npz", "adult"):
        if not (own / name).exists():
            (own / name).symlink_to(folder / name)
    before = _hashes(own, folder)
    printed = _run(checkout, own, *entry.command)
    print(f"{entry.name}: {printed if printed.startswith(_FAILED) else 'done'}", file=sys.stderr)
    after = _hashes(own, folder)
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    if entry.command[0] in ("evaluate", "run_plan", "privacy") or printed.startswith(_FAILED):
        changed["printed"] = _digest(printed.replace(str(folder), "FOLDER").encode())
    return changed


def _owner(entry: Entry) -> str:
    """Returns the entry in whose folder another one runs."""
    above = next((e for e in entries() if e.name == entry.after), None)
    return entry.name if above is None else _owner(above)


def _folder_of(name: str, folder: Path) -> Path:
    return folder / name.replace("/", "-")


def _hashes(own: Path, folder: Path) -> dict[str, str]:
    files = [path for path in sorted(own.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = {path: path.relative_to(own).as_posix() for path in files}
    return {
        name: _hash(path, str(folder))
        for path, name in names.items()
        if not any(fnmatch.fnmatch(f"/{name}", pattern) for pattern in _LEFT_OUT)
    }


def _hash(path: Path, folder: str) -> str:
    """Returns the hash of what a file says, whatever its folder is called and when it was made."""
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


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns a line for each entry whose files differ, or that one side lacks."""
    lines = []
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            lines.append(f"{name}: only {'after' if one is None else 'before'}")
        elif one != other:
            files = sorted(f for f in {*one, *other} if one.get(f) != other.get(f))
            lines.append(f"{name}: {', '.join(files)}")
    return lines


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run entries in a checkout, write their hashes")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", nargs="+", default=["*"], help="patterns of entries' names")
    comparing = commands.add_parser("compare", help="print the entries that differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    commands.add_parser("list", help="print the names of all entries")
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(entry.name for entry in entries()))
        return 0
    if arguments.command == "record":
        found = record(arguments.checkout.resolve(), arguments.only)
        arguments.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} entries: {arguments.file}")
        return 0
    sides = [json.loads(path.read_text()) for path in (arguments.before, arguments.after)]
    lines = compare(*sides)
    print("\n".join(lines) if lines else f"all {len(sides[0])} entries are equal")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
