"""Every command: its flags, and its work."""
