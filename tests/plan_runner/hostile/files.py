"""Exports with a damaged or hostile folder, manifest, records or archives."""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.plan_runner.hostile.spoiling import (
    CLIENT,
    ROUND,
    Hostile,
    Stage,
    changed,
    manifest,
    moved_out,
    replaced,
    swapped,
)

_ENTRY = {"sha256": "0" * 64, "bytes": 1}


def _edited_manifest(content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "manifest.json").write_bytes(content)


def _listed(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        files = json.loads((folder / "manifest.json").read_text())["files"]
        manifest(files={**files, name: _ENTRY})(folder)

    return spoil


def _a_million_entries(folder: Path) -> None:
    entries = ",".join(f'"{number}":0' for number in range(1_000_000))
    (folder / "manifest.json").write_text(
        json.dumps(json.loads((folder / "manifest.json").read_text())).replace(
            '"files": {', '"files": {' + entries + ",", 1
        )
    )


def _masked_crc(content: bytes) -> bytes:
    """Returns the masked CRC-32C checksum of TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _sized_records(length: int) -> Callable[[bytes], bytes]:
    """Returns a function that adds a header with a false length and this length's checksum."""
    header = struct.pack("<Q", length)
    return lambda content: header + _masked_crc(header) + content


def _array(content: bytes = b"\0" * 4, shape: str = "()", descr: str = "'<f4'") -> bytes:
    """Returns an .npy file with any header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def _archive(arrays: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


FILES = {
    # Folders
    "an absolute path": Hostile(_listed("/etc/passwd"), "paths within the export"),
    "a name of terminal codes": Hostile(_listed("\x1b[2J"), "\\x1b[2J: expected the manifest's"),
    "a name that no file can have": Hostile(_listed("\ud800"), "expected a file"),
    "a link out": Hostile(moved_out("plan.pb"), "found a link to a file outside"),
    "a linked folder": Hostile(moved_out("conformance"), "found a link to a file outside"),
    "the manifest as a link": Hostile(moved_out("manifest.json"), "found a link to a file outside"),
    "a loop of links": Hostile(
        replaced("plan.pb", lambda path: path.symlink_to(path.name)), "plan.pb: expected"
    ),
    "a pipe as the manifest": Hostile(
        replaced("manifest.json", os.mkfifo), "expected the file manifest.json"
    ),
    "a pipe as a file": Hostile(replaced("plan.pb", os.mkfifo), "expected the manifest's file"),
    "a device as a file": Hostile(
        replaced("plan.pb", lambda path: path.symlink_to("/dev/zero")), "a link to a file outside"
    ),
    # Manifests
    "a million entries": Hostile(_a_million_entries, "files: 0: expected dict, found int"),
    "a manifest of 100 MB": Hostile(
        lambda folder: os.truncate(folder / "manifest.json", 10**8),
        "expected at most 16000000 bytes, found more",
    ),
    "a manifest of brackets": Hostile(_edited_manifest(b"[" * 100_000), "expected JSON"),
    "a manifest of digits": Hostile(
        _edited_manifest(b'{"format_version": ' + b"9" * 1_000_000 + b"}"), "manifest.json: "
    ),
    # Records
    "a record of 1 TiB": Hostile(changed(CLIENT, _sized_records(1 << 40)), "longer than the file"),
    "a record of 2^64 - 1 bytes": Hostile(
        changed(CLIENT, _sized_records((1 << 64) - 1)), "longer than the file"
    ),
    "too many records": Hostile(
        changed(CLIENT, lambda content: content * 50),
        "expected at most 99 records (--max_records)",
        flags=("--max_records=99",),
    ),
    "a record of another checksum": Hostile(
        changed(CLIENT, lambda content: content[:14] + b"\0\0" + content[16:]),
        "expected a TFRecord file, cannot read it",
        Stage.PLAYED,
    ),
    # Archives
    "an archive that inflates": Hostile(
        changed(ROUND, lambda _: _archive({"a": _array(bytes(40_000_000), "(10000000,)")})),
        "expected at most 20 MB when unpacked (--max_unpacked_mb), found 40.0 MB",
        flags=("--max_unpacked_mb=20",),
    ),
    "an array that claims 4 TiB": Hostile(
        changed(ROUND, lambda _: _archive({"a": _array(shape=f"({1 << 40},)")})),
        "an array of 4398046511104 bytes in 4 bytes",
    ),
    "an array with bytes behind it": Hostile(
        changed(ROUND, lambda _: _archive({"a": _array(bytes(5))})),
        "an array of 4 bytes in 5 bytes",
    ),
    "an array of objects": Hostile(
        changed(ROUND, lambda _: _archive({"a": _array(b"cos\nsystem\n.", descr="'|O'")})),
        "it contains Python objects",
    ),
    "an array with a long header": Hostile(
        changed(ROUND, lambda _: _archive({"a": _array(shape="(" * 9000)})),
        "expected an .npz file",
    ),
    "an archive that is a plan": Hostile(swapped(ROUND, "plan.pb"), "plan.pb: expected"),
}
