"""The work of a client: one run of a session, as on a device."""

import contextlib
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Optional

import numpy as np

from plan_runner import plan_pb2
from plan_runner.clients.examples_feed import examples_feed
from plan_runner.clients.tflite_beside import TfLiteBeside
from plan_runner.errors import PlanError
from plan_runner.graphs.check import Permissions, check_graph
from plan_runner.graphs.messages import (
    check_parts,
    constants,
    graph_of,
    tensor_specs,
)
from plan_runner.graphs.session import GraphSession, load_graph, session_config

_WHERE = "plan.pb: client"


class ClientGraph:
    """Plays one client after the other on a plan's client graph.

    Attributes:
        outputs: The tensors that a client returns directly, by name.
        beside: What else runs every client, and compares; None by default.

    Args:
        plan: The plan.
        writes_update: Whether a client writes a checkpoint; otherwise it returns tensors only.

    Raises:
        PlanError: If the plan's client part is not one that this runner can play.
    """

    def __init__(self, plan: plan_pb2.Plan, writes_update: bool) -> None:
        phase = plan.phase[0].client_phase
        check_parts(
            phase,
            _WHERE,
            ("tensorflow_spec", "federated_compute"),
            ("name", "minimum_number_of_participants"),
        )
        spec, router = phase.tensorflow_spec, phase.federated_compute
        update = ("output_filepath_tensor_name",) if writes_update else ("aggregations",)
        check_parts(router, f"{_WHERE}: federated_compute", ("input_filepath_tensor_name", *update))
        results = ("target_node_names",) if writes_update else ("output_tensor_specs",)
        check_parts(
            spec,
            f"{_WHERE}: tensorflow_spec",
            ("dataset_token_tensor_name", "input_tensor_specs", *results),
            ("constant_inputs", "example_selector"),
        )
        self._minimum = phase.minimum_number_of_participants
        self.outputs = tensor_specs(spec.output_tensor_specs, f"{_WHERE}: output_tensor_specs")
        secure = {
            name
            for name, config in router.aggregations.items()
            if config.HasField("secure_aggregation")
        }
        if set(self.outputs) != secure or secure != set(router.aggregations):
            raise PlanError(
                f"{_WHERE}: expected secure_aggregation of every tensor of output_tensor_specs, "
                f"found {sorted(secure)} for {sorted(self.outputs)}"
            )
        self._input = router.input_filepath_tensor_name
        self._output = router.output_filepath_tensor_name
        inputs = tensor_specs(spec.input_tensor_specs, f"{_WHERE}: input_tensor_specs")
        paths = {self._input, self._output} - {""}
        if set(inputs) != paths:
            raise PlanError(
                f"{_WHERE}: input_tensor_specs: expected {sorted(paths)}, found {sorted(inputs)}"
            )
        self._names = [*self.outputs, *spec.target_node_names]
        graph_def = graph_of(plan.client_graph_bytes, f"{_WHERE}: graph")
        check_graph(graph_def, Permissions.of_client(phase), f"{_WHERE}: graph")
        self.beside: Optional[TfLiteBeside] = None
        self._feed = examples_feed(spec.dataset_token_tensor_name)
        selector = self._feed.prepare(graph_def, f"{_WHERE}: graph")
        # For the service of a device that asks the message, not the graph.
        if spec.HasField("example_selector") and spec.example_selector != selector:
            raise PlanError(
                f"{_WHERE}: tensorflow_spec: example_selector: expected "
                f"{selector.collection_uri!r} as in the graph, found "
                f"{spec.example_selector.collection_uri!r}"
            )
        self._session = GraphSession(
            load_graph(graph_def, f"{_WHERE}: graph"),
            _WHERE,
            session_config(plan.tensorflow_config_proto, f"{_WHERE}: tensorflow_config_proto"),
            constants(spec.constant_inputs, f"{_WHERE}: constant_inputs"),
        )
        with _closed_on_error(self._session):
            self._session.require([*paths, *self._feed.feeds([]), *self._names])

    def check_cohort(self, clients: Sized) -> None:
        """Checks that enough clients take part.

        Raises:
            PlanError: If fewer than the plan asks for.
        """
        if len(clients) < self._minimum:
            raise PlanError(
                f"cohort: expected at least {self._minimum} clients, found {len(clients)}"
            )

    def run(
        self, name: str, examples: Sequence[bytes], checkpoint: Path, update: Optional[Path] = None
    ) -> dict[str, np.ndarray]:
        """Plays one client; returns the tensors that it sends directly, by name.

        Args:
            name: The client's name, for messages.
            examples: Its serialised examples.
            checkpoint: What the server has sent.
            update: Where to write its checkpoint, if it writes one.

        Raises:
            PlanError: If the graph fails on its examples, or writes nothing.
        """
        feeds: dict[str, Any] = {
            **self._feed.feeds(examples),
            self._input: str(checkpoint),
        }
        if update is not None:
            feeds[self._output] = str(update)
        values = self._session.run(self._names, feeds, f"client {name}")
        if update is not None and not update.is_file():
            raise PlanError(f"{_WHERE}: client {name}: expected an update, the graph wrote none")
        sent = dict(zip(self.outputs, values))
        if self.beside is not None:
            self.beside.compare(name, examples, checkpoint, update, sent)
        return sent

    def close(self) -> None:
        """Ends its session."""
        self._session.close()


@contextlib.contextmanager
def _closed_on_error(session: GraphSession) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.close()
        raise
