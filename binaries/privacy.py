"""Tells epsilon of settings, noise for an epsilon, or rounds for a budget, without training.

Example: ./run privacy --clients=100000 --clients_per_round=1000 --rounds=500 --target_epsilon=4
"""

from collections.abc import Sequence

from absl import flags

from tff_agnostic.files import make_folder, write_json, write_text
from tff_agnostic.privacy.options import PRIVACIES, AccountingOptions
from tff_agnostic.program.cli import run_app
from tff_agnostic.program.private.privacy_answers import answer
from tff_agnostic.program.private.privacy_figure import figure
from tff_agnostic.program.reporting.image import save
from tff_agnostic.setting_flags import Setting, define, given_values, path_flag, settings_in
from tff_agnostic.settings import check_effective


def define_flags() -> None:
    """Defines the flags of this binary."""
    for setting in settings_in(AccountingOptions):
        define(setting, _help(setting))
    flags.DEFINE_string(
        "output_dir",
        None,
        "Folder for privacy.json, privacy.csv and privacy.png; none is written if not given.",
    )


def main(argv: Sequence[str]) -> None:
    """Prints the answer, what it rests on, and epsilon of other rounds and noise."""
    del argv
    given = given_values(settings_in(AccountingOptions))
    options = AccountingOptions(**given)
    check_effective(options, given)
    found = answer(options)
    print(found.sentence)
    print(f"\n{found.table()}")
    note = found.note()
    if note is not None:
        print(f"\nnote: {note}")
    print(f"\n{found.neighbours().table()}")
    folder = path_flag("output_dir")
    if folder is None:
        return
    make_folder(folder)
    curves = found.curves()
    files = [folder / f"privacy.{ending}" for ending in ("json", "csv", "png")]
    json_file, csv_file, image = files
    write_json(json_file, found.to_json())
    write_text(csv_file, curves.to_csv())
    save(figure(curves, found.statement), image)
    print(f"\nfiles: {', '.join(map(str, files))}")


def _help(setting: Setting) -> str:
    metadata, default = setting.field.metadata, setting.field.default
    text = metadata["help"]
    choices = PRIVACIES if setting.flag == "privacy" else metadata.get("choices")
    if choices is not None:
        text += f" One of: {', '.join(choices)}."
    if default is None:
        return text
    return f"{text} [{','.join(default) if isinstance(default, tuple) else default}]"


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
