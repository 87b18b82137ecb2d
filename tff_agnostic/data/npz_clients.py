"""Clients as .npz files, one a client: arrays "x", "y" and "domain_id"."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.data.clients import check_labels, checked_examples
from tff_agnostic.data.npz import read_npz
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples


class NpzClients:
    """The .npz files of a folder; a client's id is its file's name without the suffix.

    Args:
        folder: Where the files are.
        spec: What `Model.client_data_spec` returned.
        num_domains: p.
        num_classes: Labels have to be below it; None if "y" holds no classes.

    Raises:
        UserError: If the folder has no .npz files.
    """

    def __init__(
        self,
        folder: Path,
        spec: Mapping[str, Any],
        num_domains: int,
        num_classes: Optional[int] = None,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._num_domains = num_domains
        self._num_classes = num_classes
        self._ids = sorted(path.stem for path in folder.glob("*.npz"))
        if not self._ids:
            raise UserError(f"{folder}: expected a folder with one .npz file a client, found none")

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples; see `ClientDataset.read`."""
        path = self._folder / f"{client_id}.npz"
        examples = checked_examples(read_npz(path), self._spec, self._num_domains, str(path))
        if self._num_classes is not None:
            check_labels(examples["y"], self._num_classes, str(path))
        return examples
