"""Rounds one after the other: who takes part, what is left of them, what is verified."""
