"""Exports a task's federated algorithm as a plan for a fleet of devices.

Example: ./run export --task=digits --output_dir=export
"""

from tff_agnostic.program.commands.export import EXPORT

if __name__ == "__main__":
    EXPORT.main(__doc__)
