"""The folder of a run whose rounds were a fleet's."""

from collections.abc import Mapping

from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.exchange import RunState
from tff_agnostic.files import make_folder, write_text
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.program.reporting.column import ROUND
from tff_agnostic.program.specs.run_algorithm import build_algorithm
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.program.specs.trained_with import trained_with
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.task import Task


class ImportedRun:
    """A run that is to have the state of a fleet's.

    Args:
        spec: The run.
        task: Its task, loaded.

    Attributes:
        initial: The state before its first round.
        fingerprint: What the run is made of.
    """

    def __init__(self, spec: RunSpec, task: Task) -> None:
        self._spec = spec
        self._algorithm = build_algorithm(spec, task)
        self.fingerprint = spec.fingerprint(task)
        self.initial: RunState = AggregatedRound(
            self._algorithm, spec.build_aggregation()
        ).initialize()

    def write(self, folder: RunFolder, state: RunState) -> None:
        """Writes a folder that `train --resume`, `evaluate`, `save_model` and `export` read.

        Its rows of metrics have the numbers of the fleet's rounds and nothing else.

        Raises:
            UserError: If it cannot be written.
        """
        completed = int(state.round_num)
        make_folder(folder.path)
        rows = "".join(f"{number}\n" for number in (ROUND, *range(1, completed + 1)))
        write_text(folder.metrics, rows)
        models: Mapping[str, ModelWeights] = self._algorithm.models(state.algorithm)
        kept = trained_with(self._spec, self.fingerprint)
        checkpoints = CheckpointFolder(folder.checkpoints, keep=1, trained_with=kept)
        checkpoints.save(completed, state, models)
        folder.write_config(self._spec, self.fingerprint, {})
