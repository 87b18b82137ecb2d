"""Exports a task's federated algorithm as a plan for a fleet of devices.

Example: ./run export --task=digits --output_dir=export
"""

from tff_agnostic.run.export_command import EXPORT

if __name__ == "__main__":
    EXPORT.main(__doc__)
