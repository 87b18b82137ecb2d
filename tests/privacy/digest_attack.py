"""A membership attack that searches published files for digests of a known store."""

import base64
import functools
import hashlib
import io
import operator
import sqlite3
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tff_agnostic.base.files import OWNER_ONLY
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.tff_store import to_tff

_ALGORITHMS = ("sha256", "sha1", "md5", "sha512", "blake2b", "blake2s")
# Size of truncated digests in bytes; shorter digests occur at random in large files.
_BYTES = 8
# Number of base64 characters that depend only on a truncated digest's bytes.
_BASE64 = _BYTES * 8 // 6


def store_digests(store: Path) -> set[bytes]:
    """Returns digests of a store's files, of all its examples, and of each split's and client's."""
    opened = ArrowStore(store)
    with tempfile.TemporaryDirectory() as folder:
        to_tff(opened, Path(folder) / "tff.sqlite")
        connection = sqlite3.connect(Path(folder) / "tff.sqlite")
        rows = connection.execute(
            "SELECT split_name, client_id, serialized_example_proto FROM examples ORDER BY rowid"
        ).fetchall()
        connection.close()
    groups: dict[tuple[str, ...], list[bytes]] = {}
    for split, client, example in rows:
        for group in ((), (split,), (split, client)):
            groups.setdefault(group, []).append(example)
    files = [path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()]
    contents = [*files, b"".join(files), *map(b"".join, groups.values())]
    digests = {hashlib.new(name, content).digest() for name in _ALGORITHMS for content in contents}
    digests.add(bytes.fromhex(opened.digest()))
    return digests | {total for examples in groups.values() for total in _totals(examples)}


def _totals(examples: Iterable[bytes]) -> Iterator[bytes]:
    """Yields digests of examples that do not depend on their order."""
    hashed = [hashlib.sha256(example).digest() for example in examples]
    yield hashlib.sha256(b"".join(sorted(hashed))).digest()
    numbers = [int.from_bytes(digest[:_BYTES], "big") for digest in hashed]
    for total in (sum(numbers) % 2 ** (8 * _BYTES), functools.reduce(operator.xor, numbers)):
        yield total.to_bytes(_BYTES, "big")


def digest_places(published: Mapping[str, bytes], digests: Iterable[bytes]) -> list[str]:
    """Returns the names whose contents include a digest, in any encoding and even if truncated."""
    forms = {form for digest in digests for form in _forms(digest[:_BYTES])}
    return [name for name, content in published.items() if any(form in content for form in forms)]


def _forms(start: bytes) -> set[bytes]:
    encoded = base64.b64encode(start)[:_BASE64]
    numbers = [str(int.from_bytes(order, "big")).encode() for order in (start, start[::-1])]
    return {
        *(start, start[::-1]),
        *(start.hex().encode(), start.hex().upper().encode()),
        *(encoded, encoded.replace(b"+", b"-").replace(b"/", b"_")),
        *numbers,
    }


def published(folder: Path) -> dict[str, bytes]:
    """Returns the files in a folder that others may read, and the members of zip files."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        name: content
        for path in files
        if stat.S_IMODE(path.stat().st_mode) != OWNER_ONLY
        for name, content in _unpacked(str(path.relative_to(folder)), path.read_bytes())
    }


def _unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _unpacked(f"{name}: {member}", archive.read(member))
