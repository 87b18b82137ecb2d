"""The command: what is asked for, done in a process of its own, and told."""
