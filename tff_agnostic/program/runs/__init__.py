"""One run: its settings, its folder, the loop, and what it leaves."""
