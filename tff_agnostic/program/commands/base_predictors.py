"""The command base_predictors: builds unigram models of domains or clients, for ensembles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import check_can_be_made, make_folder
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.boosting.unigrams import num_outcomes
from tff_agnostic.program.base_predictors.counting import GROUPINGS, unigram_predictors
from tff_agnostic.program.base_predictors.files import write_predictors
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, TaskOptions
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.runs.train_run import started

_SETTINGS = (
    "seed",
    "runtime",
    "aggregation",
    "max_examples",
    "limit_examples",
    "secure_bits",
    "secure_min_clients",
)


@dataclasses.dataclass(frozen=True)
class PredictorOptions(TaskOptions):
    """Flags of `base_predictors` in addition to the settings of runs.

    Attributes:
        group_by: Group that each predictor describes: domain (counts are summed over the domain's
            clients) or client (the server sees each client's counts).
        smoothing_share: Smoothing s in [0, 1]: a predictor is (1 - s) * (fractions of the outcomes)
            + s * (uniform distribution). With 0, outcomes without examples have probability 0, and
            only the squared loss is finite.
        output: File to write, .npz, for --base_predictors of train.
    """

    task: Annotated[str, OneOf(DEFAULTS)] = "unigram"
    group_by: Annotated[str, OneOf(GROUPINGS)] = "domain"
    smoothing_share: Annotated[float, Within(least=0.0, most=1.0)] = 0.01
    output: Path = dataclasses.field(kw_only=True)


def base_predictors(given: RunArguments) -> None:
    """Counts the outcomes of the training clients, and writes one predictor per group."""
    options: PredictorOptions = given.args
    output = options.output
    if output.suffix != ".npz":
        raise UserError(f"--output: expected a name that ends in .npz, found {output}")
    check_can_be_made(output.parent, "output")
    if output.exists():
        raise UserError(f"--output: expected a new file, found {output}: files are not overwritten")
    spec = given.spec()
    task = spec.load_task()
    outcomes, aggregation = num_outcomes(task.model), spec.build_aggregation()
    name = spec.config.runtime
    with started(name, given.runtime_options(name)) as runtime:
        predictors, skipped = unigram_predictors(
            task, runtime, aggregation, options.group_by, options.smoothing_share
        )
    make_folder(output.parent)
    write_predictors(output, predictors)
    for group, num_clients in skipped.items():
        print(f"note: {group} is left out: too few clients ({num_clients}) have examples")
    if predictors.about["examples_cut"]:
        print(
            "note: examples left out, of clients with more than "
            f"--limit_examples={aggregation.limits.examples}: {predictors.about['examples_cut']}"
        )
    print(
        f"{counted(len(predictors.names), 'base predictor')} over {outcomes} outcomes, of "
        f"{sum(predictors.about['examples'])} examples by {options.group_by}, smoothed by "
        f"{options.smoothing_share:g} of uniform: {output}"
    )


BASE_PREDICTORS = RunCommand(
    "base_predictors", PredictorOptions, base_predictors, settings=_SETTINGS
)
