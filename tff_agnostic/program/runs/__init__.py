"""A run: its settings, its folder, its training, and its results."""
