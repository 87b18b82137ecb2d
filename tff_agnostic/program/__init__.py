"""The program on top of the library: flags, run folders, commands."""
