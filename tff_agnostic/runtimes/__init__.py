"""Where rounds are executed: one protocol, several runtimes."""
