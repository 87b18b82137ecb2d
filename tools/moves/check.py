"""Checks of a map before it is applied: complete, without circles, and all arrows pointing down."""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from tools.moves.code import Mover
from tools.moves.layout import PACKAGES, Layout, folder_of, tracked, unknown
from tools.moves.names import Tree

Arrows = Mapping[str, Mapping[str, set[str]]]


def arrows(mover: Mover, tree: Tree, layout: Layout) -> Arrows:
    """Returns which new module imports which other at its top, with the names that it takes."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for place in layout.places.values():
        if place.path.split("/")[0] not in PACKAGES:
            continue
        uses = [
            (tree.modules[chunk.module], use)
            for chunk in mover.chunks_of(place)
            for use in tree.modules[chunk.module].uses_in(chunk)
        ]
        for module, use in uses:
            symbol = mover.symbol(module, use)
            if symbol and symbol.own and symbol.home != place.path:
                found[place.path][symbol.home].add(f"{module.path}: {symbol.name or use.name}")
        # Packages name what they hand on in their imports alone.
        for source in place.sources if place.path.endswith("__init__.py") else ():
            module = tree.modules[source]
            for statement in module.imports:
                for target in tree.imported(module, statement).values():
                    if target.own and isinstance(statement, ast.ImportFrom):
                        home = mover.texts.home(target.module, target.name)[0]
                        home = home if target.name else layout.place_of(target.module)
                        if home != place.path:
                            found[place.path][home].add(f"{source}: {target.name}")
    return found


def heavier(mover: Mover, tree: Tree, layout: Layout, graph: Arrows) -> Iterator[str]:
    """Yields modules that have to be imported without something heavy, and would not be."""
    after: dict[str, set[str]] = defaultdict(set)
    for place in layout.places.values():
        after[place.path] |= set(graph.get(place.path, ()))
        for chunk in mover.chunks_of(place):
            module = tree.modules[chunk.module]
            symbols = [mover.symbol(module, use) for use in module.uses_in(chunk)]
            after[place.path] |= {_external(s.home) for s in symbols if s and not s.own}
    for path in layout.edited:
        after[path] -= {"tensorflow", "tensorflow_federated"}
    for heavy, paths in layout.without.items():
        for path in paths:
            if path not in layout.places:
                yield f"{path}: in the map's list of what needs no {heavy}, and not there"
            chain = _chain(after, path, layout.places, heavy)
            if chain:
                yield f"{path} needs {heavy} now: {' -> '.join(chain)}"


def _external(statement: str) -> str:
    return statement.split(" ")[1].split(".")[0]


def _chain(
    graph: Mapping[str, set[str]], start: str, known: Collection[str], heavy: str
) -> list[str]:
    """Returns by way of which modules importing a module imports something heavy."""
    chains = {start: [start]}
    rest = [start]
    while rest:
        path = rest.pop(0)
        parts = path.split("/")
        packages = ["/".join([*parts[:i], "__init__.py"]) for i in range(1, len(parts))]
        for other in [*graph.get(path, ()), *(p for p in packages if p in known)]:
            if other not in chains:
                chains[other] = [*chains[path], other]
                rest.append(other)
    return chains.get(heavy, [])


def circles(graph: Mapping[str, Mapping[str, set[str]]]) -> list[list[str]]:
    """Returns the groups of nodes that reach each other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, {}):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group: list[str] = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def problems(mover: Mover, tree: Tree, layout: Layout) -> Iterator[str]:
    """Yields what of the map does not fit a checkout."""
    for path in unknown(layout, tree.modules):
        yield f"{path}: in no place of the map"
    for place in layout.places.values():
        for source in place.sources:
            if source not in tree.modules:
                yield f"{source}: in the map of {place.path}, and not there"
        stays = [s for s in place.sources if s.startswith("tests/")]
        yield from (f"{s}: a test among modules" for s in stays)
    for path in layout.stays:
        inside = [p for p in tree.modules if p == path or p.startswith(path + "/")]
        kept = [p for p in map(layout.place_of, inside) if p == path or p.startswith(path + "/")]
        if inside and not kept:
            yield f"{path}: it has to stay, and nothing of it does"
    graph = arrows(mover, tree, layout)
    for group in circles(graph):
        yield "a circle of imports: " + ", ".join(group)
        for one in group:
            for other in group:
                for name in sorted(graph.get(one, {}).get(other, ()))[:4]:
                    yield f"    {one} -> {other}: {name}"
    yield from heavier(mover, tree, layout, graph)
    folders: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one, others in graph.items():
        for other, names in others.items():
            if folder_of(one) != folder_of(other):
                arrow = f"{one} -> {other}"
                between = folders[folder_of(one)][folder_of(other)]
                between |= {f"{arrow}: {name}" for name in names}
    rank = {folder: i for i, level in enumerate(layout.order) for folder in level}
    for one, to in folders.items():
        for folder, names in to.items():
            if one not in rank:
                yield f"{one}: in no place of the order"
            elif rank[one] <= rank.get(folder, -1):
                yield f"{one} imports {folder}, which is not below it:"
                yield from (f"    {name}" for name in sorted(names)[:6])


def report(mover: Mover, tree: Tree, layout: Layout) -> str:
    """Returns modules and lines by folder, before and after (unformatted)."""
    before, after = Counter[str](), Counter[str]()
    lines_before, lines_after = Counter[str](), Counter[str]()
    sizes = []
    for path, module in tree.modules.items():
        if path.split("/")[0] in PACKAGES:
            before[folder_of(path)] += 1
            lines_before[folder_of(path)] += module.source.count("\n")
    for place in layout.places.values():
        if mover.is_as_before(place):
            lines = tree.modules[place.sources[0]].source.count("\n")
        else:
            lines = mover.joined_module(place).count("\n")
        after[folder_of(place.path)] += 1
        lines_after[folder_of(place.path)] += lines
        sizes.append((lines, place.path))
    text = ["folder: modules before -> after, lines before -> after (joined modules unformatted)"]
    for folder in sorted({*before, *after}):
        text.append(
            f"  {folder}: {before[folder]} -> {after[folder]}, "
            f"{lines_before[folder]} -> {lines_after[folder]}"
        )
    text.append(
        f"  all: {sum(before.values())} -> {sum(after.values())}, "
        f"{sum(lines_before.values())} -> {sum(lines_after.values())}"
    )
    text += [f"  over 500 lines: {path} {lines}" for lines, path in sorted(sizes) if lines > 500]
    return "\n".join(text)


def tree_of(root: object) -> Tree:
    """Returns the modules of a checkout."""
    from pathlib import Path

    from tools.moves.layout import TOPS

    path = Path(str(root))
    paths = [p for p in tracked(path, ".py") if p.split("/")[0] in TOPS]
    return Tree(path, [p for p in paths if not p.startswith("tools/moves/")])
