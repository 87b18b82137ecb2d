"""Makes the base predictors of an ensemble: unigram models of domains or of clients.

Example: ./run base_predictors --task=unigram --data=posts.sqlite --output=predictors.npz
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from absl import flags

from tff_agnostic.base_predictors.counting import GROUPINGS, outcomes_of, unigram_predictors
from tff_agnostic.base_predictors.files import write_predictors
from tff_agnostic.errors import UserError
from tff_agnostic.files import check_can_be_made, make_folder
from tff_agnostic.registry import Registry
from tff_agnostic.run.command_line import (
    define_run_flags,
    define_runtime_flags,
    define_task_flags,
    run_spec_from_flags,
    runtime_options,
)
from tff_agnostic.run.process import run_app
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import path_flag

_SETTINGS = (
    "seed",
    "runtime",
    "aggregation",
    "max_examples",
    "secure_max_examples",
    "secure_bits",
    "secure_min_clients",
)


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags(default="unigram")
    define_run_flags(_SETTINGS)
    define_runtime_flags()
    flags.DEFINE_string(
        "group_by",
        "domain",
        "Of whom each predictor is: domain, whose counts are sums over its clients; or client, of "
        "data that the server may see.",
    )
    flags.DEFINE_float(
        "smoothing_share",
        0.01,
        "s: a predictor is 1 - s times the shares of its outcomes, and s times the uniform "
        "distribution; in [0, 1]. With 0 some outcomes have a probability of 0, of which only the "
        "squared loss is finite.",
    )
    flags.DEFINE_string("output", None, "File to write, .npz, for --base_predictors of train.")


def main(argv: Sequence[str]) -> None:
    """Counts the outcomes of the training clients, and writes a predictor of each group."""
    del argv
    output, smoothing = path_flag("output"), flags.FLAGS.smoothing_share
    _check(output, smoothing)
    assert output is not None
    group_by = flags.FLAGS.group_by
    _ = Registry("value of --group_by", dict(GROUPINGS))[group_by]
    spec = run_spec_from_flags()
    task = spec.load_task()
    num_outcomes, aggregation = outcomes_of(task), spec.build_aggregation()
    options = runtime_options(spec.config.runtime)
    with RUNTIMES[spec.config.runtime](options) as runtime:
        made, left_out = unigram_predictors(task, runtime, aggregation, group_by, smoothing)
    make_folder(output.parent)
    write_predictors(output, made)
    for name, num_clients in left_out.items():
        print(f"note: {name} is left out: {num_clients} clients with examples are too few")
    if made.about["examples_cut"]:
        print(
            f"note: {made.about['examples_cut']} examples are left out, of clients with more than "
            f"--secure_max_examples={aggregation.limits.max_examples}"
        )
    print(
        f"{len(made.names)} base predictors over {num_outcomes} outcomes, of "
        f"{sum(made.about['examples'])} examples by {group_by}, smoothed by {smoothing:g} of "
        f"uniform: {output}"
    )


def _check(output: Optional[Path], smoothing: float) -> None:
    if output is None:
        raise UserError("--output: expected the file to write, found none")
    if output.suffix != ".npz":
        raise UserError(f"--output: expected a name that ends in .npz, found {output}")
    check_can_be_made(output.parent, "output")
    if output.exists():
        raise UserError(f"--output: {output} is there already: it is not overwritten")
    if not 0 <= smoothing <= 1:
        raise UserError(f"--smoothing_share: expected a number from 0 to 1, found {smoothing:g}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
