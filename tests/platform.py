"""Detects whether TensorFlow Federated is installed; only the reference platform has it."""

import importlib.util

from tff_agnostic.base.errors import UserError

MISSING_TFF = "No module named 'tensorflow_federated'"
# The package refuses with these words; TFF brings tensorflow-privacy along.
_MESSAGES = ("expected TensorFlow Federated", MISSING_TFF, "No module named 'tensorflow_privacy'")


def has_tff() -> bool:
    """Returns whether TensorFlow Federated is installed."""
    return importlib.util.find_spec("tensorflow_federated") is not None


def names_tff(message: str) -> bool:
    """Returns whether a message says that TensorFlow Federated is missing, and it really is."""
    return any(text in message for text in _MESSAGES) and not has_tff()


def lacks_tff(error: BaseException) -> bool:
    """Returns whether an error means that TFF is missing; failed assertions never do."""
    return isinstance(error, (UserError, ModuleNotFoundError)) and names_tff(str(error))
