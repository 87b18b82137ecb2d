"""Moves modules and definitions as `map.toml` says: see docs/development.md."""
