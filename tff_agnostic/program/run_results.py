"""What a run leaves at its end: plots, models, an ensemble's weights, and result.json."""

from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np

from tff_agnostic.computations.secure_check import SecurityReport
from tff_agnostic.data.remarks import Remark
from tff_agnostic.files import write_json
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.models.mixtures.ensemble import EnsembleModel
from tff_agnostic.program.ensembles.alpha_report import alpha_table, alphas, write_alphas
from tff_agnostic.program.evaluation.divergence import skipped_rounds
from tff_agnostic.program.evaluation.evaluator import Reports
from tff_agnostic.program.left_models import leave_models
from tff_agnostic.program.reporting import plots
from tff_agnostic.program.reporting.client_figure import client_figures
from tff_agnostic.program.reporting.run_rows import RunRows
from tff_agnostic.program.run_facts import run_facts
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.tasks.task import Task


def leave_results(
    folder: RunFolder,
    spec: RunSpec,
    task: Task,
    rows: RunRows,
    models: Mapping[str, ModelWeights],
    reports: Reports,
    *,
    privacy: Optional[Mapping[str, Any]],
    remarks: Iterable[Remark],
    security: Optional[SecurityReport],
) -> list[str]:
    """Writes what a complete run has; result.json, which makes it complete, last.

    Args:
        folder: The run.
        spec: Its settings.
        task: Its task.
        rows: Its rounds.
        models: The weights of each model after the last round, the main one first.
        reports: Their evaluations.
        privacy: What it spent and on what; None without differential privacy.
        remarks: What is to be known of its data.
        security: What reached the server, where secure sums were asked for.

    Returns:
        A line for each model that Keras cannot hold.

    Raises:
        UserError: If a file cannot be written.
    """
    config, values = spec.config, rows.history.values()
    num_skipped = int(np.nansum(values["skipped"]))
    if num_skipped:
        print(f"{num_skipped} of {config.rounds} rounds were {skipped_rounds(spec.settings())}")
    plots.draw_run(folder.plots, task, rows.columns, values, client_figures(reports))
    if isinstance(task.model, EnsembleModel):
        by_model = alphas(models)
        write_alphas(folder.path, task.model, by_model)
        print(alpha_table(task.model, by_model))
    (main, report), *further = reports.items()
    of_family = {"main_model": main, "models": {n: r.to_json() for n, r in further}}
    weights = rows.domain_weights()
    result = {
        "task": spec.task,
        "algorithm": config.algorithm,
        "runtime": config.runtime,
        "seed": config.seed,
        "rounds": config.rounds,
        **report.to_json(),
        **({"domain_weights": weights} if weights else {}),
        **({"privacy": privacy} if privacy is not None else {}),
        **(of_family if further else {}),
    }
    left_out = leave_models(folder, spec, task, models, result)
    # Last: where it is, the run is complete.
    about = run_facts(spec, task, rows.columns, remarks, security, num_skipped)
    write_json(folder.result, {**result, "about": about})
    return left_out
