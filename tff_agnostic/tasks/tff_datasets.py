"""TFF's own federated data sets: downloaded by TFF once, then read like any store."""

from pathlib import Path
from typing import Callable, Optional

import tensorflow_federated as tff

from tff_agnostic.errors import UserError


def emnist_store(cache_dir: Optional[Path]) -> Path:
    """Returns the file of TFF's EMNIST.

    Its splits are all_train and all_test (62 classes, 3,400 writers), digits_only_train and
    digits_only_test (10 classes, 3,383 writers).

    Args:
        cache_dir: Where TFF keeps it; its own default if None.

    Raises:
        UserError: If it is neither there nor can be downloaded.
    """

    def load(folder: str) -> None:
        tff.simulation.datasets.emnist.load_data(cache_dir=folder)

    return _fetched(cache_dir, "emnist_all.sqlite", load)


def stackoverflow_store(cache_dir: Optional[Path]) -> Path:
    """Returns the file of TFF's Stack Overflow (342,477 clients; splits train, heldout, test).

    Raises:
        UserError: If it is neither there nor can be downloaded.
    """

    def load(folder: str) -> None:
        tff.simulation.datasets.stackoverflow.load_data(cache_dir=folder)

    return _fetched(cache_dir, "stackoverflow.sqlite", load)


def stackoverflow_words(cache_dir: Optional[Path], size: int) -> tuple[str, ...]:
    """Returns the words that most of Stack Overflow's training users use.

    Raises:
        UserError: If the list is neither there nor can be downloaded.
    """
    folder = None if cache_dir is None else str(cache_dir)
    try:
        counts = tff.simulation.datasets.stackoverflow.load_word_counts(folder, size)
    except Exception as e:  # Whatever a download can raise.
        instead = "name a file of words with --stackoverflow_vocabulary"
        raise _not_fetched("stackoverflow.word_count", e, instead) from e
    return tuple(counts)


def _fetched(cache_dir: Optional[Path], file: str, load: Callable[[str], None]) -> Path:
    folder = Path.home() / ".tff" if cache_dir is None else cache_dir
    if not (folder / file).is_file():
        try:
            load(str(folder))
        except Exception as e:  # Whatever a download can raise.
            raise _not_fetched(file, e, "name a client store with --data") from e
    return folder / file


def _not_fetched(file: str, error: Exception, instead: str) -> UserError:
    return UserError(
        f"{file}: TensorFlow Federated could not download it "
        f"({' '.join(str(error).split()) or type(error).__name__}); {instead}"
    )
