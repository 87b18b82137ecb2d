"""The papers' experiments: what to run, and what the papers found."""
