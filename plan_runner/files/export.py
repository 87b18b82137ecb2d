"""The folder of an export: its files have the content that its manifest names, and no other."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from plan_runner.errors import PlanError
from plan_runner.files import manifest as manifests
from plan_runner.files.limits import DEFAULT_LIMITS, Limits
from plan_runner.files.manifest import FileEntry, Manifest

PLAN = "plan.pb"
CLIENT_ONLY_PLAN = "client_only_plan.pb"
SERVER_STATE = "server_state.ckpt"
CLIENTS = "conformance/clients"

_REQUIRED = (PLAN, CLIENT_ONLY_PLAN, SERVER_STATE)
_BLOCK_BYTES = 1 << 20


class Export:
    """An export whose files all had the right content when it was opened.

    Args:
        folder: Its folder.
        manifest: What that says of itself.
        limits: What reading and playing it may take.
    """

    def __init__(self, folder: Path, manifest: Manifest, limits: Limits = DEFAULT_LIMITS) -> None:
        self.folder = folder
        self.manifest = manifest
        self.limits = limits

    def path(self, name: str) -> Path:
        """Returns the path of a file that the manifest names.

        Raises:
            PlanError: If the manifest does not name it.
        """
        if name not in self.manifest.files:
            raise PlanError(f"{manifests.NAME}: files: expected {name!r}, found none")
        return self.folder / name

    def read(self, name: str) -> bytes:
        """Returns a file's content, which is the very content that was checked.

        Raises:
            PlanError: If the manifest does not name it, or it has changed since.
        """
        content = self.path(name).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name].sha256:
            raise PlanError(f"{self.folder / name}: expected the manifest's sha256, it has changed")
        return content


def open_export(folder: Path, limits: Limits = DEFAULT_LIMITS) -> Export:
    """Opens an export, and checks every file's hash before anything in it is parsed.

    Args:
        folder: Its folder.
        limits: What reading and playing it may take.

    Raises:
        PlanError: If a file is missing, damaged, not in the manifest or outside the folder, or the
            manifest is not one for this runner, or larger than the limit.
    """
    if not folder.is_dir():
        raise PlanError(f"{folder}: expected the folder of an export, found none")
    _check_inside(folder, manifests.NAME)
    path = folder / manifests.NAME
    # A pipe would be read until somebody writes to it.
    if not path.is_file():
        raise PlanError(f"{folder}: expected the file {manifests.NAME}, found none")
    limits.check_manifest(path.stat().st_size, manifests.NAME)
    manifest = manifests.parse_manifest(path.read_bytes())
    for name, entry in manifest.files.items():
        _check_inside(folder, name)
        _check_content(folder / name, entry)
    export = Export(folder, manifest, limits)
    for name in (
        *_REQUIRED,
        *manifest.conformance.expected,
        *(conformance_client(name) for name in manifest.conformance.clients),
    ):
        export.path(name)
    for name in _entries(folder):
        if name not in manifest.files and name != manifests.NAME:
            raise PlanError(f"{folder / name}: expected the manifest's files only, found this one")
    return export


def conformance_client(name: str) -> str:
    """Returns the name, within an export, of the file of a conformance client."""
    return f"{CLIENTS}/{name}.tfrecord"


def _check_inside(folder: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    plain = bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name
    # The same file must not have two names, either.
    if not plain or str(PurePosixPath(name)) != name:
        raise PlanError(f"{folder}: expected paths within the export, found {name!r}")
    root = folder.resolve()
    try:
        resolved = (root / name).resolve()
    except (OSError, RuntimeError, ValueError) as e:  # A loop of links, or no name for a file.
        raise PlanError(f"{folder / name}: expected a file, found a link that leads nowhere") from e
    if root not in resolved.parents:
        raise PlanError(f"{folder / name}: expected a file within the export, it links to another")


def _check_content(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise PlanError(f"{path}: expected the manifest's file, found none")
    size = path.stat().st_size
    if size != entry.size:
        raise PlanError(f"{path}: expected {entry.size} bytes as in the manifest, found {size}")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise PlanError(
            f"{path}: expected the sha256 {entry.sha256} as in the manifest, "
            f"found {digest.hexdigest()}"
        )


def _entries(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*files, *links]):
            yield (Path(parent) / name).relative_to(folder).as_posix()
