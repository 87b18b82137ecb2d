"""The commands: their flags and actions."""
