"""What an ensemble has learned: the weight of each predictor, as a table, a file and a figure."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from tff_agnostic.files import write_text
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.models.mixtures.ensemble import EnsembleModel
from tff_agnostic.program.reporting.image import save
from tff_agnostic.program.reporting.names import short_names
from tff_agnostic.program.reporting.style import draw_grid, look, new_figure, plain_text

_SHOWN = 10
_DRAWN = 30
_NAME_WIDTH = 40


def alphas(models: Mapping[str, ModelWeights]) -> dict[str, np.ndarray]:
    """Returns alpha of each model of a run, float32 [q]."""
    return {name: np.asarray(weights.trainable[0]) for name, weights in models.items()}


def write_alphas(folder: Path, model: EnsembleModel, by_model: Mapping[str, np.ndarray]) -> None:
    """Writes alpha.csv, a row per predictor, and plots/alpha.png.

    Raises:
        UserError: If they cannot be written.
    """
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["predictor", *(f"alpha ({name})" for name in by_model)])
    for k, name in enumerate(model.names):
        writer.writerow([name, *(f"{alpha[k]:.9g}" for alpha in by_model.values())])
    write_text(folder / "alpha.csv", content.getvalue())
    save(alpha_figure(model, by_model), folder / "plots" / "alpha.png")


def alpha_table(model: EnsembleModel, by_model: Mapping[str, np.ndarray]) -> str:
    """Returns a table of the predictors that weigh most in the main model."""
    order = _by_weight(by_model)
    rows = [[model.names[k], *(alpha[k] for alpha in by_model.values())] for k in order[:_SHOWN]]
    left = order[_SHOWN:]
    if len(left):
        sums = [alpha[left].sum() for alpha in by_model.values()]
        rows.append([f"{len(left)} others", *sums])
    headers = ["base predictor", *(f"alpha ({name})" for name in by_model)]
    table: str = tabulate(rows, headers=headers, floatfmt=".4f")
    return table


def alpha_figure(model: EnsembleModel, by_model: Mapping[str, np.ndarray]) -> Figure:
    """Returns bars of the predictors that weigh most."""
    order = _by_weight(by_model)[:_DRAWN][::-1]
    figure = new_figure(8, 1.5 + 0.25 * len(order))
    axes = figure.subplots()
    places, height = np.arange(len(order)), 0.8 / len(by_model)
    for i, (name, alpha) in enumerate(by_model.items()):
        own, label, at = look(i), plain_text(name), places - i * height
        axes.barh(at, alpha[order], height, color=own.color, hatch=own.hatch, label=label)
    names = short_names([model.names[k] for k in order], _NAME_WIDTH)
    axes.set_yticks(places, list(map(plain_text, names)), fontsize="small")
    axes.set(xlabel="weight alpha of a base predictor")
    draw_grid(axes, "x")
    figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


def _by_weight(by_model: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.argsort(-next(iter(by_model.values())), kind="stable")
