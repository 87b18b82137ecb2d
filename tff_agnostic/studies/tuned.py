"""What a search leaves: prints it, and writes its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from optuna.trial import FrozenTrial

from tff_agnostic.errors import UserError
from tff_agnostic.files import folder_lock, make_folder, write_errors, write_json, write_text
from tff_agnostic.reports.figures import save
from tff_agnostic.reports.page import rendered
from tff_agnostic.reports.run_page import REPORT
from tff_agnostic.studies.optuna_studies import FINISHED
from tff_agnostic.studies.search import Search, SearchRecord
from tff_agnostic.studies.tuning_page import tuning_page, usual_title
from tff_agnostic.studies.tuning_record import RESULT
from tff_agnostic.studies.tuning_report import (
    Trials,
    flags_of_all,
    flags_of_one,
    importance_figure,
    importances,
    slices,
    table,
    to_csv,
)
from tff_agnostic.studies.tuning_verdict import found_by

BEST_FLAGS, COMPARE_FLAGS = "best.flags", "compare.flags"
TRIALS_CSV = "trials.csv"


def report(search: Search, split: str, command: str, title: Optional[str]) -> None:
    """Prints the trials and the best of them, and writes all that a search leaves.

    Args:
        search: The search, ended; other processes may still run trials of it.
        split: Whose clients were evaluated.
        command: What made it.
        title: Of its page, if one was given.
    """
    # What one process writes is of the same trials, and not replaced by what another saw before.
    with folder_lock(search.folder, wait=True):
        _report(search, split, command, title)


def _report(search: Search, split: str, command: str, title: Optional[str]) -> None:
    objective, path = search.runner.objective, search.folder
    trials = {name: search.studies.trials(name, FINISHED) for name in search.arms}
    shares = {name: importances(search.studies.study(name)) for name in search.arms}
    record, seed = search.record(split), search.runner.seeds[0]
    found = found_by(record, trials, lambda name, trial: search.arms[name].spec(trial.params, seed))
    counts = {name: len(of_it) for name, of_it in trials.items()}
    sentences = found.sentences(counts, len(search.runner.seeds), split)
    write_text(path / TRIALS_CSV, to_csv(trials, objective))
    write_json(
        path / RESULT,
        {
            "command": command,
            "objective": objective.name,
            "higher_is_better": objective.higher_is_better,
            "split": split,
            "seeds": list(search.runner.seeds),
            "verdict": sentences,
            "algorithms": {
                name: {
                    "label": record.labels[name],
                    "trials": len(trials[name]),
                    "best": _to_json(found.best.get(name)),
                    "importance": shares[name],
                }
                for name in search.arms
            },
        },
    )
    _draw(record, trials, shares)
    for line in sentences:
        print(f"\n{line}")
    for name, of_it in trials.items():
        print(f"\n{search.arms[name].label}: {objective.name} on the {split} clients")
        print(table(name, of_it, objective))
        if shares[name] is None:
            print("importance: not known without two complete trials of different values")
        else:
            print(f"importance: {_in_percent(shares[name] or {})}")
    print(f"\ntrials: {path / TRIALS_CSV}, plots: {path / 'plots'}")
    elsewhere = search.num_elsewhere()
    if elsewhere:
        print(f"note: {elsewhere} trials have not ended: another process runs them, or did")
    for line in found.harm:
        print(f"note: {line}")
    _write_flags(search, trials, found.best, split)
    if found.best_runs is not None:
        heading = title or usual_title(record)
        page = tuning_page(record, found, trials, sentences, shares, command, heading)
        write_text(path / REPORT, rendered(page))
        print(f"report: {path / REPORT}")
    none = [name for name in trials if name not in found.best]
    if none:
        raise UserError(
            f"{', '.join(none)}: expected a complete trial, found none: {path / TRIALS_CSV} says "
            "how they ended; search in other ranges, or go on with more --trials and --resume"
        )


def _draw(
    search: SearchRecord, trials: Trials, shares: Mapping[str, Optional[Mapping[str, float]]]
) -> None:
    folder = search.folder / "plots"
    make_folder(folder)
    for name, label in search.labels.items():
        figure = slices(label, search.distributions[name], trials[name], search.objective)
        save(figure, folder / f"{name}_slices.png")
        of_it = shares[name]
        if of_it is not None:
            save(importance_figure(label, of_it), folder / f"{name}_importance.png")


def _write_flags(
    search: Search, trials: Trials, found: Mapping[str, FrozenTrial], split: str
) -> None:
    objective, path = search.runner.objective, search.folder
    settings = {}
    for name, trial in found.items():
        arm = search.arms[name]
        settings[name] = arm.settings(trial.params, search.runner.seeds[0])
        which = (
            f"trial {trial.number}, the best of {len(trials[name])}: {objective.name} "
            f"{objective.text(float(trial.value or 0.0))} on the {split} clients"
        )
        file = path / name / BEST_FLAGS
        write_text(file, flags_of_one(arm, settings[name], f"{arm.label} on {arm.task}: {which}."))
        command = "compare" if arm.has_two_stages else "train"
        print(f"{name}: {which}: ./run {command} --flagfile={file}")
    # One of other trials is worse than none.
    with write_errors(path):
        (path / COMPARE_FLAGS).unlink(missing_ok=True)
    if len(search.arms) == 1 or len(found) < len(search.arms):
        return
    remark = f"The best of each by {objective.name} on the {split} clients."
    text = flags_of_all(search.arms, settings, remark)
    if text is None:
        print("note: rows of a comparison share the options of the task, and these have others")
    else:
        write_text(path / COMPARE_FLAGS, text)
        print(f"all of them: ./run compare --flagfile={path / COMPARE_FLAGS}")


def _to_json(trial: Optional[FrozenTrial]) -> Optional[dict[str, Any]]:
    if trial is None:
        return None
    return {"trial": trial.number, "value": trial.value, "settings": dict(trial.params)}


def _in_percent(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
