"""All formats by name."""

from tff_agnostic.importing import npz, stackexchange, text_folders
from tff_agnostic.importing.formats import Format
from tff_agnostic.registry import Registry

FORMATS: Registry[Format] = Registry(
    "format",
    {
        "stackexchange": stackexchange.FORMAT,
        "text_folders": text_folders.FORMAT,
        "npz": npz.FORMAT,
    },
)
