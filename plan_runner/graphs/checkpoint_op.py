"""A CheckpointOp of a plan: a saver in the server's graph, with operations around it."""

from pathlib import Path
from typing import Any, Optional

from plan_runner.errors import PlanError
from plan_runner.graphs.messages import check_parts, saver_def, tensor_name
from plan_runner.graphs.session import GraphSession

OPS_AROUND = ("before_restore_op", "after_restore_op", "before_save_op", "after_save_op")


class CheckpointOp:
    """Saves or restores variables of a session.

    Attributes:
        path: The name of the tensor that holds the file's path.
        names: The names in the graph that it uses.

    Args:
        message: The plan's own.
        where: Which one it is, for messages.

    Raises:
        PlanError: If it has no saver, one of several files, or parts that are not heeded here.
    """

    def __init__(self, message: Any, where: str) -> None:
        check_parts(message, where, ("saver_def",), OPS_AROUND)
        saver = saver_def(message.saver_def, f"{where}: saver_def")
        self._message = message
        self._where = where
        self._save = saver.save_tensor_name
        self._restore = saver.restore_op_name
        self.path = tensor_name(saver.filename_tensor_name)
        around = [getattr(message, name) for name in OPS_AROUND]
        self.names = [name for name in (self._save, self._restore, self.path, *around) if name]

    def save(self, session: GraphSession, path: Path) -> None:
        """Writes a checkpoint.

        Raises:
            PlanError: If the graph fails, or writes none.
        """
        self._run(session, self._message.before_save_op)
        self._run(session, self._save, path)
        self._run(session, self._message.after_save_op)
        if not path.is_file():
            raise PlanError(f"{self._where}: expected a checkpoint, the graph wrote none")

    def restore(self, session: GraphSession, path: Path) -> None:
        """Reads a checkpoint.

        Raises:
            PlanError: If the graph fails.
        """
        self._run(session, self._message.before_restore_op)
        self._run(session, self._restore, path)
        self._run(session, self._message.after_restore_op)

    def _run(self, session: GraphSession, name: str, path: Optional[Path] = None) -> None:
        if name:
            feeds = {} if path is None else {self.path: str(path)}
            session.run([name], feeds, self._where.rpartition(": ")[2])
