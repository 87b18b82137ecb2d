"""Checks for TensorFlow Federated, which only the reference platform has."""

import importlib.util

from tff_agnostic.base.errors import UserError

MISSING_TFF = "No module named 'tensorflow_federated'"
# Parts of error messages if TFF or tensorflow-privacy, which TFF depends on, is missing.
_MESSAGES = ("expected TensorFlow Federated", MISSING_TFF, "No module named 'tensorflow_privacy'")


def has_tff() -> bool:
    return importlib.util.find_spec("tensorflow_federated") is not None


def names_tff(message: str) -> bool:
    """Returns whether a message reports that TFF is missing, and TFF is not installed."""
    return any(text in message for text in _MESSAGES) and not has_tff()


def lacks_tff(error: BaseException) -> bool:
    """Returns whether an error reports that TFF is missing; never for assertion errors."""
    return isinstance(error, (UserError, ModuleNotFoundError)) and names_tff(str(error))
