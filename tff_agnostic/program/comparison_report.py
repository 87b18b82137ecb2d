"""A comparison as tables laid out like the paper's, and as figures."""

import math
from typing import Optional

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from tff_agnostic.program.comparison import DIFFERENCE, SUMMARIES, Comparison, Trials
from tff_agnostic.program.plots import plain_text, plot_known, scale_axis

LABELS = {
    "agnostic_fed_avg": "AgnosticFedAvg",
    "fed_avg": "FedAvg (uniform)",
    "fed_avg_target_only": "FedAvg (target-only)",
}

# Of measures that are not shares; others have three.
_DECIMALS = {"perplexity": 2}

# With more domains than this, algorithms become the columns, so that a terminal can show the table.
_MAX_DOMAIN_COLUMNS = 5


def table(comparison: Comparison, measure: str, table_format: str) -> str:
    """Returns one measure as a table: a row per algorithm, a column per domain, as in the paper.

    Cells hold the mean and, in parentheses, the standard deviation over the trials; the best
    algorithm of a domain is bold in Markdown. Shares such as accuracy are in percent. With many
    domains rows and columns change places.

    Args:
        comparison: The trials.
        measure: "loss" or the name of a metric.
        table_format: A format of tabulate; "github" is Markdown.
    """
    columns = [["algorithm", *(LABELS.get(name, name) for name in comparison.trials)]]
    for domain in (*comparison.domain_names, *SUMMARIES):
        best = _best_algorithm(comparison, domain, measure)
        column = [domain.strip("()") if domain in SUMMARIES else _heading(domain, table_format)]
        for algorithm, trials in comparison.trials.items():
            cell = _cell(trials, domain, measure)
            column.append(f"**{cell}**" if (table_format, algorithm) == ("github", best) else cell)
        columns.append(column)
    if len(comparison.domain_names) > _MAX_DOMAIN_COLUMNS:
        columns[0][0] = "domain"
        rows = columns
    else:
        rows = [list(row) for row in zip(*columns)]
    return tabulate(rows[1:], headers=rows[0], tablefmt=table_format, disable_numparse=True)


def markdown(comparison: Comparison, title: str, command: str) -> str:
    """Returns every measure's table as a Markdown page."""
    count = len(next(iter(comparison.trials.values())).histories)
    parts = [f"# {title}", f"`{command}`", f"Mean and standard deviation of {count} trials."]
    for measure, higher in comparison.higher_is_better.items():
        direction = "higher" if higher else "lower"
        unit = ", percent" if is_share(measure) else ""
        parts.append(f"## {_title(measure)}{unit} ({direction} is better)")
        parts.append(table(comparison, measure, "github"))
    return "\n\n".join(parts) + "\n"


def figure(comparison: Comparison, measure: str) -> Figure:
    """Returns the worst domain's measure over rounds, and every domain's at the end."""
    result = Figure(figsize=(12, 4.5), layout="constrained")
    curves, bars = result.subplots(1, 2)
    positions = np.arange(len(comparison.domain_names))
    width = 0.8 / len(comparison.trials)
    for i, (algorithm, trials) in enumerate(comparison.trials.items()):
        label = LABELS.get(algorithm, algorithm)
        rounds = trials.histories[0]["round"]
        by_trial = np.array([h[f"test/worst {measure}"] for h in trials.histories])
        with np.errstate(invalid="ignore"):  # The spread of what is infinite, as perplexity may be.
            mean, std = by_trial.mean(axis=0), by_trial.std(axis=0)
        plot_known(curves, rounds, mean, color=f"C{i}", label=label)
        known = np.isfinite(mean)
        curves.fill_between(
            rounds[known], (mean - std)[known], (mean + std)[known], color=f"C{i}", alpha=0.2
        )
        means = [trials.mean(d, measure) for d in comparison.domain_names]
        stds = [trials.std(d, measure) for d in comparison.domain_names]
        offsets = positions + (i - (len(comparison.trials) - 1) / 2) * width
        bars.bar(offsets, means, width, yerr=np.nan_to_num(stds), capsize=2, label=label)
    curves.set(xlabel="round", ylabel=f"{measure} of the worst domain", title="Worst domain")
    scale_axis(curves, measure)
    curves.grid(alpha=0.3)
    bars.set(xlabel="domain", ylabel=measure, title="Every domain after the last round")
    bars.set_xticks(positions, [plain_text(name) for name in comparison.domain_names])
    bars.grid(alpha=0.3, axis="y")
    curves.legend()
    return result


def _heading(domain: str, table_format: str) -> str:
    one_line = " ".join(domain.split())
    return one_line.replace("|", r"\|") if table_format == "github" else one_line


def _title(measure: str) -> str:
    return measure.replace("_", " ").capitalize()


def is_share(measure: str) -> bool:
    """Returns whether a measure is a share, to be shown in percent."""
    # "in_vocab_accuracy", "accuracy_without_out_of_vocab_or_end_of_sentence"
    return "accuracy" in measure.split("_")


def _cell(trials: Trials, domain: str, measure: str) -> str:
    mean, std = trials.mean(domain, measure), trials.std(domain, measure)
    scale, digits = (100.0, 1) if is_share(measure) else (1.0, _DECIMALS.get(measure, 3))
    spread = "" if math.isnan(std) else f" ({std * scale:.{digits}f})"
    return f"{mean * scale:.{digits}f}{spread}"


def _best_algorithm(comparison: Comparison, domain: str, measure: str) -> Optional[str]:
    means = {a: trials.mean(domain, measure) for a, trials in comparison.trials.items()}
    # A domain without test examples has no mean, and no best algorithm.
    known = [algorithm for algorithm, mean in means.items() if not math.isnan(mean)]
    if not known:
        return None
    higher = comparison.higher_is_better[measure] and domain != DIFFERENCE
    return (max if higher else min)(known, key=lambda algorithm: means[algorithm])
