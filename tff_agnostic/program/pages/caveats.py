"""What a reader has to know before the numbers, in words."""

from collections.abc import Iterator, Sequence

import numpy as np

from tff_agnostic.data.remarks import FEW_EXAMPLES
from tff_agnostic.privacy.earlier_account import is_too_small
from tff_agnostic.privacy.statement import WEAK_EPSILON
from tff_agnostic.program.pages.blocks import Line, Name, Part, Section, Warnings
from tff_agnostic.program.pages.course import weight_quantity
from tff_agnostic.program.pages.run_record import RunRecord
from tff_agnostic.program.reporting.cells import cell
from tff_agnostic.quantities import Unit

# A domain's number that rests on fewer clients is one of them.
FEW_CLIENTS = 10
# A domain that weighs more in the mean of the last rounds leaves the others nothing.
RUN_AWAY = 0.9
_SOME_ROUNDS = 0.1
_TEST = "test"
_MAX_NAMES = 5
# Remarks of the data that these pages tell with their own numbers.
_TOLD_HERE = ("small_domains", "domains_without_examples")


def caveats_section(run: RunRecord) -> Section:
    """Returns the warnings of a run ("Caveats and Recommendations"); none if there are none."""
    lines = caveats(run)
    return Section("caveats", "What to know first", [Warnings(lines)] if lines else [])


def caveats(run: RunRecord) -> list[Line]:
    """Returns the warnings of a run, each a sentence or two."""
    return [*data_caveats(run), *_unsure_worst(run), *training_caveats(run)]


def data_caveats(run: RunRecord) -> list[Line]:
    """Returns those of its data, which all runs on it share."""
    checks = (
        *(_split, _never_trained_on, _learnt_of_few),
        *(_not_evaluated, _small, _few_clients, _data),
    )
    return [line for check in checks for line in check(run)]


def training_caveats(run: RunRecord) -> list[Line]:
    """Returns those of what it did with them."""
    checks = (_runaway_weight, _skipped, _non_finite, _clipped, _privacy)
    return [line for check in checks for line in check(run)]


def _split(run: RunRecord) -> Iterator[Line]:
    if run.split != _TEST:
        yield (
            f"The numbers are of the {run.split} clients, not of the test clients: they are for "
            "choosing settings, and look too good as a proof."
        )


def _never_trained_on(run: RunRecord) -> Iterator[Line]:
    trained = run.about.get("data", "train", "domains")
    if trained is None:
        return
    names = [
        name
        for name in run.domains
        if not trained[name]["examples"] and run.source.get("domains", name, "num_examples")
    ]
    if names:
        yield [
            "No training client has an example of ",
            *_listed(names),
            ": what the model does there it has learnt from other domains.",
        ]


def _learnt_of_few(run: RunRecord) -> Iterator[Line]:
    trained = run.about.get("data", "train", "domains")
    if trained is None:
        return
    counts = {n: trained[n]["examples"] for n in run.domains}
    names = sorted((n for n, c in counts.items() if 0 < c < FEW_EXAMPLES), key=lambda n: counts[n])
    if names:
        numbers = [run.about.number("data", "train", "domains", n, "examples") for n in names]
        yield [
            f"{len(names)} of {len(counts)} domains have fewer than {FEW_EXAMPLES} training "
            "examples: ",
            *_listed(names, numbers),
            ". What the model does there, and what they weigh, is learnt of few.",
        ]


def _not_evaluated(run: RunRecord) -> Iterator[Line]:
    names = [n for n in run.domains if not run.source.get("domains", n, "num_examples")]
    if names:
        yield [
            f"No {run.split} client has an example of ",
            *_listed(names),
            ": nothing is known of how good the model is there.",
        ]


def _small(run: RunRecord) -> Iterator[Line]:
    counts = {n: run.source.get("domains", n, "num_examples") for n in run.domains}
    names = sorted((n for n, c in counts.items() if 0 < c < FEW_EXAMPLES), key=lambda n: counts[n])
    if names:
        numbers = [run.source.number("domains", n, "num_examples") for n in names]
        yield [
            f"{len(names)} of {len(counts)} domains have fewer than {FEW_EXAMPLES} {run.split} "
            "examples: ",
            *_listed(names, numbers),
            ". Their numbers are uncertain, and the worst domain may be one of them by chance.",
        ]


def _few_clients(run: RunRecord) -> Iterator[Line]:
    path = ("over_clients", "loss", "num_clients")
    counts = {n: run.source.get("domains", n, *path) or 0 for n in run.domains}
    names = sorted((n for n, c in counts.items() if 0 < c < FEW_CLIENTS), key=lambda n: counts[n])
    if names:
        numbers = [run.source.number("domains", n, *path) for n in names]
        yield [
            f"{len(names)} of {len(counts)} domains rest on fewer than {FEW_CLIENTS} {run.split} "
            "clients: ",
            *_listed(names, numbers),
            ". What holds of them need not hold of others, whatever the brackets say.",
        ]


def _runaway_weight(run: RunRecord) -> Iterator[Line]:
    quantity = weight_quantity(run)
    if quantity is None or len(run.domains) < 2:
        return
    for column in run.drawn(quantity):
        values = run.columns[column.name]
        values = values[np.isfinite(values)]
        count = max(1, round(_SOME_ROUNDS * len(values)))
        first, last = (
            float(np.mean(v)) if len(v) else 0.0 for v in (values[:count], values[-count:])
        )
        if last <= RUN_AWAY:
            continue
        what = "had nearly all weight from the start" if first > RUN_AWAY else "took over"
        yield [
            f"{quantity.name}: one domain {what}. ",
            Name(column.domain or ""),
            f" weighed {cell(last, Unit.SHARE, 3)}% in the mean of the last {count} rounds; the "
            "others were hardly trained on.",
        ]


def _unsure_worst(run: RunRecord) -> Iterator[Line]:
    for measure in run.measures.values():
        worst = run.source.get("worst", measure.name, "domain")
        ends = run.source.get("domains", worst, "intervals", measure.name, "value")
        if worst is None or not ends:
            continue
        counted = set(run.domains) - {worst, *(run.result.get("not_counted") or ())}
        others = {
            n: run.source.get("domains", n, "intervals", measure.name, "value") for n in counted
        }
        near = [
            n
            for n in run.domains
            if others.get(n)
            and (others[n][0] <= ends[1] if measure.higher_is_better else others[n][1] >= ends[0])
        ]
        if near:
            yield [
                f"Which domain is the worst in {measure.name} is not certain: the interval of ",
                Name(worst),
                f" overlaps with that of {len(near)} other domain{'s' * (len(near) > 1)}.",
            ]


def _skipped(run: RunRecord) -> Iterator[Line]:
    skipped = run.about.number("rounds_skipped")
    if skipped.value:
        yield [
            skipped,
            " of ",
            run.source.number("rounds"),
            " rounds were skipped, since their sums were not finite: a learning rate is too high.",
        ]


def _non_finite(run: RunRecord) -> Iterator[Line]:
    number = run.source.number("clients", "non_finite")
    if number.value:
        yield [
            number,
            f" {run.split} clients gave numbers that are not finite, and are in no result.",
        ]


def _clipped(run: RunRecord) -> Iterator[Line]:
    clipped = run.result.get("clipped") or {}
    parts: list[Part] = []
    for field, count in clipped.items():
        if count:
            parts += [run.source.number("clipped", field), f" of {field}", ", "]
    if parts:
        yield [
            "Values beyond the bounds of secure sums were clipped in the evaluation: ",
            *parts[:-1],
            ". Such clients count less, and means over clients are cut; larger --secure_max_... "
            "avoid that.",
        ]
    counters = [q for q in run.quantities if q.unit is Unit.VALUES]
    found = {q.name: float(np.nansum(run.columns.get(q.name, 0.0))) for q in counters}
    # What the last evaluation clipped has been told.
    if sum(found.values()) > sum(clipped.values()):
        listed = ", ".join(f"{count:.0f} in {name}" for name, count in found.items() if count)
        yield f"Values beyond the bounds of secure sums were clipped over the rounds: {listed}."


def _privacy(run: RunRecord) -> Iterator[Line]:
    private = run.source.below("privacy")
    if not run.is_private:
        return
    epsilon = private.number("epsilon")
    if epsilon.value is None:
        yield "Training was private in name only: without noise epsilon is infinite."
    elif epsilon.value > WEAK_EPSILON:
        yield ["Epsilon is ", epsilon, f": above {WEAK_EPSILON:.0f} it promises next to nothing."]
    if is_too_small(run.config):
        yield (
            "An earlier release wrote a smaller epsilon into result.json. It took the number of "
            "clients of a round for secret, which everybody learns where clients add the noise."
        )
    if run.config.get("noise_seed") is not None:
        yield "The noise was that of --noise_seed: whoever knows it can take it away."


def _data(run: RunRecord) -> Iterator[Line]:
    for remark in run.about.get("remarks") or ():
        if remark["kind"] not in _TOLD_HERE:
            yield f"{remark['text'][0].upper()}{remark['text'][1:]}"


def _listed(names: Sequence[str], numbers: Sequence[Part] = ()) -> list[Part]:
    parts: list[Part] = []
    for i, name in enumerate(names[:_MAX_NAMES]):
        parts += [", "] if i else []
        parts += [Name(name), *([" (", numbers[i], ")"] if numbers else [])]
    more = len(names) - _MAX_NAMES
    return [*parts, f" and {more} more"] if more > 0 else parts
