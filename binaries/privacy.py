"""Prints epsilon of settings, noise for an epsilon, or rounds for a budget, without training.

Example: ./run privacy --clients=100000 --clients_per_round=1000 --rounds=500 --target_epsilon=4

With --audit it also attacks rounds of these settings, and compares what the attack proves with the
epsilon that is claimed.
"""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tff_agnostic.files import make_folder, write_json, write_text
from tff_agnostic.privacy.options import AccountingOptions, AuditOptions
from tff_agnostic.reports.figures import save
from tff_agnostic.run.process import run_app
from tff_agnostic.settings import OptionTable, check_effective, path_flag
from tff_agnostic.studies.privacy_planning import Answer, answer, figure

_ACCOUNTING = OptionTable.of("flag", [("", "", AccountingOptions)])
_AUDIT = OptionTable.of("flag", [("", "", AuditOptions)])
# Other answers need no TensorFlow, which takes seconds to import.
_MAY_AUDIT = re.compile("--?(audit|flagfile)")


def define_flags() -> None:
    """Defines the flags of this binary."""
    _ACCOUNTING.define()
    _AUDIT.define()
    flags.DEFINE_string(
        "output_dir",
        None,
        "Folder for privacy.json, privacy.csv and privacy.png; none is written if not given.",
    )


def main(argv: Sequence[str]) -> None:
    """Prints the answer, what it rests on, and epsilon of other rounds and noise.

    An audit that refutes the claim ends with status 1.
    """
    del argv
    given = _ACCOUNTING.from_flags()
    options = AccountingOptions(**given)
    check_effective(options, given)
    of_audit = _AUDIT.from_flags()
    auditing = AuditOptions(**of_audit)
    check_effective(auditing, of_audit)
    found = answer(options)
    print(found.sentence)
    print(f"\n{found.table()}")
    note = found.note()
    if note is not None:
        print(f"\nnote: {note}")
    print(f"\n{found.neighbours().table()}")
    audited = None
    if auditing.audit:
        # Imported here, with TensorFlow.
        from tff_agnostic.studies.privacy_audit import audit_of_answer

        audited = audit_of_answer(found, auditing)
        print(f"\n{audited.sentence}\n\n{audited.table()}")
    folder = path_flag("output_dir")
    if folder is not None:
        facts = found.to_json()
        _write(folder, found, facts if audited is None else {**facts, "audit": audited.to_json()})
    if audited is not None and audited.is_refuted:
        print(f"error: {audited.sentence}", file=sys.stderr)
        sys.exit(1)


def _write(folder: Path, found: Answer, facts: Mapping[str, Any]) -> None:
    make_folder(folder)
    curves = found.curves()
    files = [folder / f"privacy.{ending}" for ending in ("json", "csv", "png")]
    json_file, csv_file, image = files
    write_json(json_file, facts)
    write_text(csv_file, curves.to_csv())
    save(figure(curves, found.statement), image)
    print(f"\nfiles: {', '.join(map(str, files))}")


def entry_point() -> None:
    """Runs this binary."""
    if any(_MAY_AUDIT.match(argument) for argument in sys.argv):
        # Keras is of no use if TensorFlow is first imported when absl's app runs.
        importlib.import_module("tensorflow")
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
