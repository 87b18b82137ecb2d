"""Collects the pages of the site from docs/ and linked files, and orders the pages of each folder.

Pages are plain Markdown, which is also readable on GitHub. The copies for the site also have an
index page per folder, tables of contents, and new paths for links out of docs/. The links in a
folder's index.md determine the order of its pages.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

from tools.docs.plain import notebook_page, with_tables

DOCS = "docs"
# Folder in the site's sources for files outside docs/ to which pages link.
PROJECT = "project"
# Pages in the top folder of a checkout, in the order of the site.
TOP_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_INDEX = "index.md"
# The index that lists the generated pages.
REFERENCE = "reference/index.md"
# HTML of a picture for light and dark backgrounds, which the site replaces by the light picture.
_PICTURE = re.compile(r"<picture>.*?<img alt=\"(.*?)\" src=\"(.*?)\">\s*</picture>", re.DOTALL)
_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_NOTEBOOK = ".ipynb"


class SiteError(Exception):
    """An error in a page or a link; the message is for the author of the page."""


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the site.

    Attributes:
        path: Path of the page in the site's sources, with slashes.
        text: Markdown of the page, with the site's links.
        links: Distinct paths of the linked pages, in order.
    """

    path: str
    text: str
    links: tuple[str, ...]


def targets(text: str) -> list[str]:
    """Returns the distinct targets of links and pictures in Markdown, in order."""
    # Import here, because tests of other functions run without this dependency of MyST.
    from markdown_it import MarkdownIt

    links = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            value = token.attrGet("href") or token.attrGet("src")
            if isinstance(value, str):
                links.append(value)
    return list(dict.fromkeys(links))


def site_path(path: str) -> str:
    """Converts a file's path in the checkout to its path in the site's sources."""
    inside = PurePosixPath(path)
    if inside.suffix == _NOTEBOOK:
        inside = inside.with_name(f"{inside.stem}_notebook.md")
    if inside.parts[0] == DOCS:
        return str(PurePosixPath(*inside.parts[1:]))
    return f"{PROJECT}/{inside}"


def collect(root: Path) -> tuple[dict[str, Page], dict[str, Path]]:
    """Returns all pages, and the other files that they link to, both keyed by path in the site.

    Args:
        root: Folder of the checkout.

    Raises:
        SiteError: Links lead to missing files, or out of the checkout.
    """
    waiting = [p.relative_to(root).as_posix() for p in sorted((root / DOCS).rglob("*.md"))]
    waiting += [name for name in TOP_PAGES if (root / name).is_file()]
    pages: dict[str, Page] = {}
    files: dict[str, Path] = {}
    broken = []
    while waiting:
        path = waiting.pop(0)
        if site_path(path) in pages:
            continue
        text = (root / path).read_text(encoding="utf-8")
        name = PurePosixPath(path).name
        if path.endswith(_NOTEBOOK):
            files[str(PurePosixPath(site_path(path)).with_name(name))] = root / path
            text = notebook_page(text, name)
        text = with_tables(_PICTURE.sub(r"![\1](\2)", text))
        links, moved = [], {}
        for target in targets(text):
            if _EXTERNAL.match(target) or target.startswith("#") or target == name:
                continue
            file, _, fragment = target.partition("#")
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
            if (root / linked).is_dir() and (root / linked / _INDEX).is_file():
                linked = f"{linked}/{_INDEX}"
            if linked.startswith("../") or not (root / linked).is_file():
                broken.append(f"{path}: expected a file at {target}, found none")
                continue
            new_path = site_path(linked)
            if linked.endswith((".md", _NOTEBOOK)):
                links.append(new_path)
                waiting.append(linked)
            else:
                files[new_path] = root / linked
            moved[target] = _relative(site_path(path), new_path) + (
                f"#{fragment}" if fragment else ""
            )
        page = Page(site_path(path), _with_links(text, moved), tuple(links))
        pages[page.path] = page
    if broken:
        raise SiteError("\n".join(broken))
    return pages, files


def with_generated(pages: Mapping[str, Page], texts: Mapping[str, str]) -> dict[str, Page]:
    """Adds generated pages, and lists them in the index of the reference.

    Args:
        pages: The pages that are not generated, keyed by path.
        texts: Markdown of the generated pages, keyed by path.
    """
    result = dict(pages)
    for path, text in texts.items():
        links = [
            posixpath.normpath(posixpath.join(posixpath.dirname(path), t)) for t in targets(text)
        ]
        result[path] = Page(path, text, tuple(links))
    listed = [path for path in texts if _lister(path) == REFERENCE]
    lines = [f"- [{page_title(texts[p])}]({_relative(REFERENCE, p)})" for p in listed]
    before = result.get(REFERENCE, Page(REFERENCE, "# Reference\n\nWhere to look things up.\n", ()))
    text = f"{before.text.rstrip()}\n\n## Made from the code\n\n" + "\n".join(lines) + "\n"
    result[REFERENCE] = dataclasses.replace(before, text=text, links=(*listed, *before.links))
    return result


def _lister(path: str) -> str:
    """Returns the path of the index page that lists a page.

    A folder's index page is listed in the parent folder's index page.
    """
    at = PurePosixPath(path)
    folder = at.parent.parent if at.name == _INDEX else at.parent
    return str(folder / _INDEX)


def _relative(page: str, target: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _with_links(text: str, moved: Mapping[str, str]) -> str:
    for old, new in moved.items():
        if old != new:
            text = text.replace(f"]({old})", f"]({new})")
            text = re.sub(rf"^(\[[^\]]+\]: *){re.escape(old)}$", rf"\g<1>{new}", text, flags=re.M)
    return text


def page_title(text: str) -> str:
    """Returns the first heading of a page; "" if the page has none."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else ""


def with_order(pages: Mapping[str, Page]) -> dict[str, str]:
    """Returns the Markdown of all pages, with a table of contents in each folder's index.

    The index of a folder NAME is NAME/index.md, or else the page NAME.md next to the folder, or
    else a new page.

    Args:
        pages: The pages, keyed by path.
    """
    texts = {path: page.text for path, page in pages.items()}
    folders = sorted({str(parent) for p in pages for parent in PurePosixPath(p).parents})
    heads = {folder: _head(folder, pages) for folder in folders}
    for folder, head in heads.items():
        if head not in texts:
            # A folder of linked files from outside docs/ may have no index.
            texts[head] = f"# {_folder_title(folder)}\n"
    for folder, head in heads.items():
        children = [p for p in pages if str(PurePosixPath(p).parent) == folder and p != head]
        children += [
            heads[sub]
            for sub in folders
            if sub != "." and str(PurePosixPath(sub).parent) == folder and heads[sub] != head
        ]
        children = [c for c in dict.fromkeys(children) if c not in _heads_below(heads, folder)]
        links = pages[head].links if head in pages else ()
        ordered = sorted(children, key=lambda c: (_place(c, links), c))
        if ordered:
            is_list = head not in pages
            texts[head] += _toctree([_relative(head, c) for c in ordered], is_list)
    return texts


def _head(folder: str, pages: Collection[str]) -> str:
    index = _INDEX if folder == "." else f"{folder}/{_INDEX}"
    return f"{folder}.md" if index not in pages and f"{folder}.md" in pages else index


def _heads_below(heads: Mapping[str, str], folder: str) -> set[str]:
    """Returns the pages in a folder that are the index pages of folders below its subfolders."""
    return {
        head
        for sub, head in heads.items()
        if str(PurePosixPath(head).parent) == folder
        and sub not in (folder, ".")
        and str(PurePosixPath(sub).parent) != folder
    }


def _place(child: str, links: tuple[str, ...]) -> int:
    """Returns the position of a child's first link in an index page.

    If the child is the index of a subfolder, links to any page of the subfolder count.
    """
    if child in links:
        return links.index(child)
    if child.endswith(f"/{_INDEX}"):
        below = child.removesuffix(_INDEX)
        return next((n for n, link in enumerate(links) if link.startswith(below)), len(links))
    return len(links)


def _folder_title(folder: str) -> str:
    return PurePosixPath(folder).name.replace("_", " ").capitalize()


def _toctree(children: Iterable[str], is_list: bool) -> str:
    options = ":maxdepth: 1" if is_list else ":hidden:"
    return "\n\n```{toctree}\n" + options + "\n\n" + "\n".join(children) + "\n```\n"


def write_changed(folder: Path, texts: Mapping[str, str], files: Mapping[str, Path]) -> bool:
    """Writes files to a folder if they have changed, and removes all other files from the folder.

    Args:
        texts: Contents of files, keyed by path in the folder.
        files: Sources of files to copy, keyed by path in the folder.

    Returns:
        Whether the folder has changed.
    """
    contents = {path: text.encode("utf-8") for path, text in texts.items()}
    contents |= {path: source.read_bytes() for path, source in files.items()}
    others = [path for path in folder.rglob("*") if path.is_file()]
    others = [path for path in others if path.relative_to(folder).as_posix() not in contents]
    for path in others:
        path.unlink()
    changed = bool(others)
    for name, content in contents.items():
        path = folder / name
        if path.is_dir():
            # An earlier build has written a folder with this name.
            shutil.rmtree(path)
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            changed = True
    return changed
