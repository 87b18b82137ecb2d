"""A search read back from its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.reports.page import Page
from tff_agnostic.reports.run_record import read_run
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.optuna_studies import FILE, FINISHED, Method, Studies, trial_folder
from tff_agnostic.studies.search import SearchRecord
from tff_agnostic.studies.search_space import parse_objective
from tff_agnostic.studies.searched_method import OWN_FILE
from tff_agnostic.studies.tuning_page import tuning_page
from tff_agnostic.studies.tuning_report import Trials
from tff_agnostic.studies.tuning_verdict import found_by

RESULT = "tuned.json"


@dataclasses.dataclass(frozen=True)
class EndedSearch:
    """What a search left.

    Attributes:
        search: What it was.
        trials: The finished trials of each algorithm, by its name.
        content: tuned.json.
    """

    search: SearchRecord
    trials: Trials
    content: Mapping[str, Any]

    def page(self, title: str) -> Page:
        """Returns its page, as `tune` made it.

        Args:
            title: Its heading.
        """
        found = found_by(self.search, self.trials, self._spec)
        if found.best_runs is None:
            raise UserError(
                f"{self.search.folder}: expected the runs of the best trials, found that some are "
                "gone: a page shows them"
            )
        content, search = self.content, self.search
        counts = {name: len(of_it) for name, of_it in self.trials.items()}
        # An earlier release wrote no sentences.
        sentences = content.get("verdict") or found.sentences(
            counts, len(search.seeds), search.split
        )
        shares = {name: of["importance"] for name, of in content["algorithms"].items()}
        return tuning_page(
            search,
            found,
            self.trials,
            sentences,
            shares,
            content["command"],
            title,
        )

    def _spec(self, name: str, trial: FrozenTrial) -> RunSpec:
        return RunFolder(self.search.runs_of(name, trial)[0]).spec()


def read_search(folder: Path) -> EndedSearch:
    """Returns what a search left in its folder.

    Raises:
        UserError: If something else is there, or no trial is complete.
    """
    content, own = read_json(folder / RESULT), read_json(folder / OWN_FILE)
    if not (folder / FILE).is_file():
        raise UserError(f"{folder / FILE}: expected the trials of the search, found no such file")
    try:
        names, seeds = list(content["algorithms"]), tuple(content["seeds"])
        method = Method(
            bool(content["higher_is_better"]),
            seeds[0],
            *(own["sampler"], own["pruner"], own["prune_after"]),
        )
        studies = Studies(folder, method)
        trials = {name: studies.trials(name, FINISHED) for name in names}
        search = SearchRecord(
            folder,
            own["task"],
            {n: str(of.get("label") or n) for n, of in content["algorithms"].items()},
            # Its measures and domains are those of its runs.
            parse_objective(content["objective"], *_measured(folder, trials, seeds[0])),
            seeds,
            str(content["split"]),
            {n: _distributions(own["search"][n], trials[n]) for n in names},
        )
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{folder / RESULT}: expected what a search found, found something else: "
            "tune --resume writes the file again"
        ) from e
    return EndedSearch(search, trials, content)


def _measured(folder: Path, trials: Trials, seed: int) -> tuple[Any, Sequence[str]]:
    """Returns what runs of a search measured, and the domains."""
    paths = (
        trial_folder(folder, name, trial.number) / f"seed_{seed}"
        for name, of_it in trials.items()
        for trial in of_it
    )
    path = next((path for path in paths if RunFolder(path).result.exists()), None)
    if path is None:
        raise UserError(
            f"{folder}: expected the runs of a complete trial, found none: a page shows them"
        )
    first = read_run(path)
    return first.measures, first.domains


def _distributions(flags: Mapping[str, str], trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    found = {flag: of for trial in trials for flag, of in trial.distributions.items()}
    return {flag: found[flag] for flag in flags if flag in found}
