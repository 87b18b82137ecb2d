"""Makes a client store from files in a public format.

Example: ./run import_data --format=stackexchange --input=Posts.xml --output=clients.store
"""

from tff_agnostic.program.commands.import_data import IMPORT_DATA

if __name__ == "__main__":
    IMPORT_DATA.main(__doc__)
