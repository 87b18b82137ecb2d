"""The table "before / now" of what a user's own Python files may import, for CHANGELOG.md."""

from collections.abc import Iterator

from tools.moves.layout import Layout, dotted, folder_of

# What an algorithm's or a model's file imports from; commands are called by their names.
_FOLDERS = (
    "tff_agnostic",
    *(f"tff_agnostic/{name}" for name in ("aggregations", "algorithms", "computations")),
    *(f"tff_agnostic/{name}" for name in ("lambda_sets", "models", "privacy", "tasks")),
)


def rows(layout: Layout) -> Iterator[str]:
    """Yields the lines of the table, in Markdown."""
    yield "| before | now |"
    yield "|---|---|"
    for place in layout.places.values():
        for source in place.sources:
            inside = any(source.startswith(f"{folder}/") for folder in _FOLDERS[1:])
            if not (inside or folder_of(source) == _FOLDERS[0]) or source.endswith("__init__.py"):
                continue
            if source != place.path:
                yield f"| `{dotted(source)}` | `{dotted(place.path)}` |"
            for (module, name), new in layout.definitions.items():
                if module == source and not name.startswith("_"):
                    yield f"| `{dotted(source)}.{name}` | `{dotted(new)}.{name}` |"
            for (module, name), new in layout.renames.items():
                if module == source and not name.startswith("_"):
                    yield f"| `{dotted(source)}.{name}` | `{dotted(place.path)}.{new}` |"
