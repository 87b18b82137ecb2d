"""Foundations that every layer of the library uses."""
