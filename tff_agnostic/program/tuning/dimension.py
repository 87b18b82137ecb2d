"""One setting that a search varies: where it may lie, and what its values are."""

import dataclasses
import math
from typing import Any, Optional, Union

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from tff_agnostic.errors import UserError
from tff_agnostic.setting_flags import Setting, parsed

FORM = "LOW..HIGH, LOW..HIGH/STEP, log:LOW..HIGH or choice:A,B,..."
_CHOICE, _LOG, _DOTS = "choice:", "log:", ".."
# Between choices that have commas themselves.
_BAR = "|"
_NUMBERS = (int, float)
# Of the width of a range in steps, as numbers with a decimal point are not exact.
_TOLERANCE = 1e-9

Distribution = Union[CategoricalDistribution, FloatDistribution, IntDistribution]


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A setting and where it may lie.

    Attributes:
        setting: The setting.
        text: Where, as the user wrote it.
        distribution: The same for Optuna. A choice is between the texts of its values.
    """

    setting: Setting
    text: str
    distribution: Distribution

    @property
    def flag(self) -> str:
        """The flag of the setting."""
        return self.setting.flag

    def draw(self, trial: Trial) -> None:
        """Draws a value for a trial, unless it has one."""
        name, of = self.flag, self.distribution
        if isinstance(of, CategoricalDistribution):
            trial.suggest_categorical(name, of.choices)
        elif isinstance(of, IntDistribution):
            trial.suggest_int(name, of.low, of.high, step=of.step, log=of.log)
        else:
            trial.suggest_float(name, of.low, of.high, step=of.step, log=of.log)

    def value(self, sampled: Any) -> Any:
        """Returns the value of the setting that Optuna's stands for."""
        return parsed(self.setting, sampled)

    def extremes(self) -> list[Any]:
        """Returns the values that show whether all are allowed: both ends, or every choice."""
        if isinstance(self.distribution, CategoricalDistribution):
            return [self.value(choice) for choice in self.distribution.choices]
        return [self.value(self.distribution.low), self.value(self.distribution.high)]

    def sampled(self, value: Any) -> Optional[Any]:
        """Returns what stands for a value of the setting; None if it does not lie here."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return next((c for c in distribution.choices if self.value(c) == value), None)
        if value is None or not distribution.low <= value <= distribution.high:
            return None
        is_on_grid = distribution.step is None or _is_whole(
            (value - distribution.low) / distribution.step
        )
        return value if is_on_grid else None

    @property
    def is_log(self) -> bool:
        """Whether it is searched by its logarithm."""
        return bool(getattr(self.distribution, "log", False))


def dimension(setting: Setting, text: str) -> Dimension:
    """Returns the dimension that a text describes; see `FORM`.

    Raises:
        UserError: If the text has another form, or is of no values of the setting.
    """
    make = _choices if text.startswith(_CHOICE) else _range
    return Dimension(setting, text, make(setting, text))


def _choices(setting: Setting, text: str) -> Distribution:
    listed = text[len(_CHOICE) :]
    choices = [c.strip() for c in listed.split(_BAR if _BAR in listed else ",")]
    if setting.kind is tuple and _BAR not in listed:
        choices = [listed.strip()]
    # Two texts may be one value.
    values = [parsed(setting, choice) for choice in choices]
    if len(values) < 2 or any(values.index(v) < i for i, v in enumerate(values)):
        separator = _BAR if setting.kind is tuple else ","
        raise UserError(
            f"expected two or more different values, separated by {separator!r}, found {text!r}"
        )
    return CategoricalDistribution(choices)


def _range(setting: Setting, text: str) -> Distribution:
    is_log = text.startswith(_LOG)
    ends, slash, step_text = text[len(_LOG) * is_log :].partition("/")
    low_text, dots, high_text = ends.partition(_DOTS)
    if not dots:
        raise UserError(f"expected {FORM}, found {text!r}")
    if setting.kind not in _NUMBERS:
        raise UserError(f"expected {_CHOICE}A,B,... for what is no number, found {text!r}")
    low, high = (parsed(setting, end.strip()) for end in (low_text, high_text))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"expected LOW..HIGH with LOW < HIGH, both finite, found {text!r}")
    if is_log and low <= 0:
        raise UserError(f"expected LOW > 0 in {_LOG}LOW..HIGH, found {text!r}")
    step = parsed(setting, step_text.strip()) if slash else None
    if step is not None and (is_log or not step > 0 or not _is_whole((high - low) / step)):
        raise UserError(
            "expected LOW..HIGH/STEP with a STEP of which HIGH - LOW is a multiple, and no "
            f"{_LOG}, found {text!r}"
        )
    if setting.kind is int:
        return IntDistribution(low, high, log=is_log, step=1 if step is None else step)
    return FloatDistribution(low, high, log=is_log, step=step)


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) <= _TOLERANCE * max(1.0, abs(number))
