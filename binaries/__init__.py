"""Command-line applications; thin, over `tff_agnostic.program.runs`."""
