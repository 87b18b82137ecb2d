"""Agnostic federated averaging on TensorFlow Federated: one model that is good for every domain."""

__version__ = "0.2.0"
