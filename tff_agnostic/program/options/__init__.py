"""Flags, derived from the library's options."""
