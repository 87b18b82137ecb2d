"""Creates a run from the checkpoint of a fleet's server that trained with an export.

Example: ./run import_state --plan=export --server_state=after/server_state.ckpt --output_dir=back
"""

from tff_agnostic.program.commands.import_state import IMPORT_STATE

if __name__ == "__main__":
    IMPORT_STATE.main(__doc__)
