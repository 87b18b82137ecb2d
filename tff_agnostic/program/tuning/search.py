"""The search: trials are taken, run and told until the budget of every algorithm is used."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from optuna.trial import FrozenTrial, TrialState
from tqdm import tqdm

from tff_agnostic.errors import UserError
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.program.tuning.arm import SearchedArm
from tff_agnostic.program.tuning.objective import Objective
from tff_agnostic.program.tuning.studies import (
    COUNTED,
    ENDED,
    FINISHED,
    NOTHING_NEW,
    SAME_AS,
    Budget,
    Claim,
    Studies,
    finds_nothing_new,
)
from tff_agnostic.program.tuning.trial_run import Outcome, TrialRunner


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for settings of several algorithms.

    Attributes:
        arms: The algorithms, by their names.
        studies: Their trials.
        runner: Runs one.
        budget: How much each algorithm may have.
        folder: Where the trials' runs are.
    """

    arms: Mapping[str, SearchedArm]
    studies: Studies
    runner: TrialRunner
    budget: Budget
    folder: Path

    def run(self, stop: StopRequest) -> None:
        """Runs trials until the budget is used, or other processes run what is left of it.

        After `begin`.

        Raises:
            UserError: If a run cannot be made; its trial is then replaced by another one.
            Interrupted: If a signal asked to stop; what was done is saved.
        """
        spaces = {name: tuple(arm.dimensions.values()) for name, arm in self.arms.items()}
        total = None if self.budget.trials is None else self.budget.trials * len(self.arms)
        with tqdm(total=total, disable=None, unit="trial") as bar:
            self._show_count(bar)
            while (claim := self.studies.taken(spaces, self.budget)) is not None:
                with claim.held:
                    bar.set_postfix_str(f"{claim.name}, trial {claim.trial.number}")
                    self._run_one(claim, stop)
                tqdm.write(self._line(claim))
                self._show_count(bar)
                if self.studies.with_budget(spaces, self.budget):
                    stop.check(f"trial {claim.trial.number} of {claim.name}")
        if self.budget.seconds is not None:
            self._say_where_nothing_is_new()

    def begin(self, seed: int) -> None:
        """Adds what is not there yet: the studies, with what is given as the first trial of each.

        Args:
            seed: Of the first run of each trial.
        """
        for name, arm in self.arms.items():
            values, outside = arm.start(seed)
            if outside:
                print(f"note: {name}: no trial has all that is given: {', '.join(outside)}")
            self.studies.add(name, values)

    def num_elsewhere(self) -> int:
        """Returns how many trials have not ended: other processes run them, or did."""
        return sum(len(self.studies.trials(name, (TrialState.RUNNING,))) for name in self.arms)

    def _run_one(self, claim: Claim, stop: StopRequest) -> None:
        try:
            with self.studies.errors():
                outcome = self.runner(self.arms[claim.name], claim, stop)
        except UserError as e:
            self.studies.tell(claim, TrialState.FAIL)
            raise UserError(
                f"{claim.name}, trial {claim.trial.number} ({shown_values(claim.trial.params)}): "
                f"{e}"
            ) from e
        self._tell(claim, outcome)

    def _tell(self, claim: Claim, outcome: Outcome) -> None:
        with self.studies.errors():
            if outcome.text:
                claim.trial.set_user_attr(ENDED, outcome.text)
        self.studies.tell(claim, outcome.state, outcome.value)

    def _line(self, claim: Claim) -> str:
        finished = self.studies.trials(claim.name, FINISHED)
        trial = next(t for t in finished if t.number == claim.trial.number)
        objective = self.runner.objective
        found = best(finished, objective)
        known = f"; best so far: {_value(found.value, objective)}" if found is not None else ""
        return (
            f"{claim.name}, trial {trial.number} ({shown_values(trial.params)}): "
            f"{described(trial, objective)}{known}"
        )

    def _say_where_nothing_is_new(self) -> None:
        for name in self.arms:
            if finds_nothing_new(self.studies.trials(name, COUNTED)):
                print(
                    f"note: {name}: the last {NOTHING_NEW} trials had values of earlier ones, or "
                    "were refused: there is nothing new to train, whatever --hours says"
                )

    def _show_count(self, bar: tqdm) -> None:
        # Other processes' trials too.
        bar.n = sum(len(self.studies.trials(name, FINISHED)) for name in self.arms)
        bar.refresh()


def best(trials: Sequence[FrozenTrial], objective: Objective) -> Optional[FrozenTrial]:
    """Returns the best complete trial, of several that are alike the first; None without any."""
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    sign = -1 if objective.higher_is_better else 1
    if not complete:
        return None
    return min(complete, key=lambda t: (sign * _known(t.value), t.number))


def described(trial: FrozenTrial, objective: Objective) -> str:
    """Returns how a trial ended: its objective, or why it has none."""
    same = f", as trial {trial.user_attrs[SAME_AS]}" if SAME_AS in trial.user_attrs else ""
    if trial.state is TrialState.COMPLETE:
        return f"{_value(trial.value, objective)}{same}"
    if trial.state is TrialState.PRUNED:
        ended = trial.user_attrs.get(ENDED, "")
        return f"ended early{same}: {ended}" if ":" not in ended else f"{ended}{same}"
    return trial.state.name.lower()


def shown_values(params: Mapping[str, object]) -> str:
    """Returns drawn values as a text: "client_learning_rate=0.1234, window=5"."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _value(value: Optional[float], objective: Objective) -> str:
    return f"{objective.name} {objective.text(_known(value))}"


def _known(value: Optional[float]) -> float:
    assert value is not None
    return value
