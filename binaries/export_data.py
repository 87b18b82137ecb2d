"""Converts a client store to a file that TFF, devices and fleet nodes read.

Example: ./run export_data --format=tff --data=clients.store --output=clients.sqlite
"""

from tff_agnostic.program.commands.export_data import EXPORT_DATA

if __name__ == "__main__":
    EXPORT_DATA.main(__doc__)
