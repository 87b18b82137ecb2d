"""Saves a run's trained models as Keras files, SavedModels or TensorFlow Lite files.

Example: ./run save_model --checkpoint=runs/digits-agnostic_fed_avg-001 --output_dir=model
"""

from tff_agnostic.program.commands.save_model import SAVE_MODEL

if __name__ == "__main__":
    SAVE_MODEL.main(__doc__)
