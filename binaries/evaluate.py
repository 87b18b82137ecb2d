"""Evaluates a checkpoint on a task's test or training clients, with results per domain.

Example: ./run evaluate --checkpoint=runs/digits-agnostic_fed_avg-001
"""

from tff_agnostic.program.commands.evaluate import EVALUATE

if __name__ == "__main__":
    EVALUATE.main(__doc__)
