"""Command-line applications: thin wrappers of `tff_agnostic.program.commands`."""
