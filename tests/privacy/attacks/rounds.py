"""An attacker's observations of rounds with private sums, where one graph executes many runs.

Server and aggregation work as in a real run: they start, encode, sum, decode and finish. Only the
clients' computations on examples are omitted, since a client may send any output. Each entry of a
cohort has a role, which determines its output. The attacked client's output has the maximum norm of
every group, in a fixed direction. All other outputs have the opposite direction.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from tff_agnostic.aggregations.aggregation import ClientFacts
from tff_agnostic.aggregations.clipping import Group
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.private_sum import CentralDpSum, PrivateState
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import ClientResult, RunState
from tff_agnostic.computations.clients import Clients, Place, client_arrays, vectorised_clients
from tff_agnostic.computations.round import (
    Round,
    RoundProgress,
    RoundStep,
    client_result,
    trace_steps,
    traced_specs,
)

# Maximum number of cohort entries, in total over runs, that run at once; it limits memory.
_ENTRIES_AT_ONCE = 40_000
# Number of keys to try: parts of a message that are equal for all these keys have no noise.
_PROBES = 16
# Norm of the attacked client's update in clip norms, below 1 so that float32 rounding cannot clip.
_WITHIN = 1 - 1e-6
# Norm of other clients' updates in clip norms, above 1 so that adaptive clipping's bits differ.
_BEYOND = 1.5
# Place of a client that is traced or probed alone.
_FIRST = Place(np.int32(0), np.int32(0))


class Role(enum.IntEnum):
    """The message that a cohort's entry sends.

    Attributes:
        NOBODY: No message, since the entry is absent.
        OTHER: The opposite of the attacked client's message.
        SILENT: Zeros, with the noise that clients add.
        CLIENT: The attacked client's message.
    """

    NOBODY = 0
    OTHER = 1
    SILENT = 2
    CLIENT = 3


class Observations(NamedTuple):
    """The attacker's observations of R runs of T rounds, arrays [R, T] or [R, T, ...].

    Attributes:
        noisy: Noisy sums minus the others' contributions, projected on the attacked client's
            contribution and scaled to unit noise.
        shift: Change of `noisy` by the attacked client.
        in_the_clear: Parts of messages without noise.
        published: Changes of the algorithm's state, and reports.
    """

    noisy: np.ndarray
    shift: np.ndarray
    in_the_clear: np.ndarray
    published: np.ndarray


class AttackedRounds:
    """Rounds of an algorithm with private sums, for attacks.

    Args:
        without: Role of the attacked client in runs without it.

    Attributes:
        without: Role of the attacked client in runs without it.
        clear: Contribution of each role's entry to the parts of messages without noise. It is empty
            if the server adds the noise, since then only the server sees messages.
    """

    def __init__(self, round_: Round, without: Role) -> None:
        self.without = without
        self._round = round_
        self._steps = [
            _AttackedStep(step, spec, without)
            for step, spec in zip(round_.steps, _answer_specs(round_))
        ]
        self._initial = tf.nest.map_structure(tf.convert_to_tensor, round_.initialize())
        messages = {role: self._probed(role) for role in Role}
        is_clear = [np.ptp(message, axis=0) == 0 for message in messages.values()]
        self._is_clear = np.all(is_clear, axis=0)
        self.clear = {role: message[0, self._is_clear] for role, message in messages.items()}

    def keys(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Returns random noise keys of runs, int64 [R, K]."""
        generator = self._steps[0].release.options.generator
        return np.array([generator.key(rng.bytes(generator.key_bytes)) for _ in range(runs)])

    def run(self, keys: np.ndarray, entries: np.ndarray, num_others: np.ndarray) -> Observations:
        """Executes runs from the initial state and returns the attacker's observations.

        Args:
            keys: Noise keys of each run, int64 [R, K].
            entries: Role of each entry of a cohort, and number of clients in a silent entry, int32
                [R, T, E, 2].
            num_others: Number of other clients in each round, which the attacker subtracts, [R, T].
        """
        at_once = max(1, _ENTRIES_AT_ONCE // entries.shape[2])
        parts = []
        for k in range(0, len(keys), at_once):
            states, rounds = self._states(keys[k : k + at_once]), []
            for t in range(entries.shape[1]):
                cohort = tf.constant(entries[k : k + at_once, t])
                others = tf.constant(num_others[k : k + at_once, t], tf.float64)
                states, noisy, messages, published = self._run_cohorts(states, cohort, others)
                in_the_clear = messages.numpy()[:, self._is_clear]
                rounds.append((*noisy.numpy().T, in_the_clear, published.numpy()))
            parts.append(tuple(np.stack(round_parts, axis=1) for round_parts in zip(*rounds)))
        observed = Observations(*map(np.concatenate, zip(*parts)))
        spread = self._spread(entries)
        return observed._replace(noisy=observed.noisy / spread, shift=observed.shift / spread)

    def _spread(self, entries: np.ndarray) -> Any:
        """Returns each round's noise, relative to noise from the expected number of clients."""
        release = self._steps[0].release
        if not isinstance(release, DistributedDpSum):
            return 1.0
        answering = np.where(entries[..., 0] == Role.NOBODY, 0, np.maximum(entries[..., 1], 1))
        num_clients = np.maximum(np.sum(answering, axis=2), 1)
        return np.sqrt(num_clients / (release.noise_clients or release.expected_clients))

    def _probed(self, role: Role) -> np.ndarray:
        """Returns the messages of rounds with a single entry of a role, for several noise keys."""
        keys = self.keys(np.random.default_rng(0), _PROBES)
        entry = np.tile(np.array([role, role is Role.SILENT], np.int32), [_PROBES, 1, 1])
        results = self._run_cohorts(
            self._states(keys), tf.constant(entry), tf.zeros([_PROBES], tf.float64)
        )
        messages: np.ndarray = results[2].numpy()
        return messages

    def _states(self, keys: np.ndarray) -> RunState:
        """Returns the initial states of runs with the given noise keys; the first axis is runs."""
        states = tf.nest.map_structure(
            lambda value: tf.repeat(value[tf.newaxis], len(keys), axis=0), self._initial
        )
        keyed = [each._replace(noise_key=tf.constant(keys)) for each in states.aggregations]
        return states._replace(aggregations=tuple(keyed))

    @functools.cached_property
    def _run_cohorts(self) -> Any:
        states = tf.nest.map_structure(
            lambda value: tf.TensorSpec([None, *value.shape], value.dtype), self._initial
        )
        entries, others = (
            tf.TensorSpec([None, None, 2], tf.int32),
            tf.TensorSpec([None], tf.float64),
        )
        return tf.function(self._run_round, [states, entries, others], autograph=False)

    def _run_round(self, states: RunState, entries: tf.Tensor, num_others: tf.Tensor) -> Any:
        """Executes one round of all runs.

        Returns:
            The next states; noisy sums and their change by the client, [R, 2]; messages, [R, M];
            and published values, [R, F].
        """
        num_runs, last = tf.shape(entries)[0], len(self._steps) - 1
        # All runs have the same number of releases. A scalar keeps the lengths of loops over trees
        # independent of the run.
        releases = [each.releases[0] for each in states.aggregations]
        following: Any = vectorised_clients(self._round.start, states)
        progress, messages, seen = RoundProgress(), [], []
        for k, step in enumerate(self._steps):
            private = states.aggregations[k]
            summed = step.summed(following.aggregation, private, entries)
            if isinstance(step.release, DistributedDpSum):
                # With a server's noise, the attacker does not see the sums before noise.
                messages += tf.nest.flatten(summed)

            def one_run(
                state: RunState, progress: Any, summed: Any, others: Any, k: int = k
            ) -> Any:
                private = [
                    each._replace(releases=number)
                    for each, number in zip(state.aggregations, releases)
                ]
                state = state._replace(aggregations=tuple(private))
                seen = self._steps[k].seen(private[k], summed, others)
                advance = self._round.finish if k == last else self._round.next_step
                return seen, advance(state, progress, summed)

            step_seen, (following, progress) = vectorised_clients(
                one_run, states, progress, summed, num_others
            )
            seen.append(step_seen)
        next_states, reports = following, progress
        along, square = tf.unstack(tf.add_n(seen), axis=1)
        shift = tf.sqrt(square)
        changes = tf.nest.map_structure(_change, states.algorithm, next_states.algorithm)
        return (
            next_states,
            tf.stack([tf.math.divide_no_nan(along, shift), shift], axis=1),
            _columns(messages, tf.int64, num_runs),
            _columns(tf.nest.flatten([changes, reports]), tf.float64, num_runs),
        )


class _AttackedStep:
    """A step of a round, and each role's message in this step.

    Attributes:
        release: The step's private sums.
    """

    def __init__(self, step: RoundStep, spec: Any, without: Role) -> None:
        release, flat = step.aggregation, tf.nest.flatten(spec)
        assert isinstance(release, (DistributedDpSum, CentralDpSum))
        self.release: Union[DistributedDpSum, CentralDpSum] = release
        self._bounds: Any = step.bounds
        self._spec: Any = spec
        self._groups: Sequence[Group] = release.groups(step.bounds)
        # Bits of adaptive clipping follow the client's output.
        shapes = [value.shape for value in flat] + [()] * len(self._groups)
        self._directions: list[list[np.ndarray]] = [
            _direction(group, shapes) for group in self._groups
        ]
        self._answers: list[np.ndarray] = [
            np.zeros([len(Role), *v.shape], v.dtype.as_numpy_dtype) for v in flat
        ]
        for group, parts in zip(self._groups, self._directions):
            beyond, within = (_BEYOND, _WITHIN) if group.is_update else (1.0, 1.0)
            for i, part in zip(group.positions, parts):
                if i < len(flat):
                    self._answers[i][Role.OTHER] = -beyond * group.limit * part
                    self._answers[i][Role.CLIENT] = within * group.limit * part
        private = step.initialize()
        self._other: tf.Tensor = self._added(private, Role.OTHER)
        self._shift: tf.Tensor = self._added(private, Role.CLIENT)
        if without is Role.OTHER:
            self._shift -= self._other

    def summed(self, params: Any, private: PrivateState, entries: tf.Tensor) -> Any:
        """Returns the sum of all entries' messages in each run's cohort.

        Args:
            params: Parameters that clients receive, by run.
            private: State of the aggregation, by run.
            entries: For each entry its role, and its number of silent clients, int32 [R, E, 2].
        """
        roles, silent = tf.unstack(entries, axis=2)
        times = tf.cast(roles != Role.NOBODY.value, tf.int32)
        if not self.release.numbers_clients:
            # Entries with the same role send equal messages, so count the roles.
            kinds = tf.constant([int(Role.OTHER), int(Role.CLIENT)])
            times = tf.reduce_sum(tf.cast(roles[..., tf.newaxis] == kinds, tf.int32), axis=1)
            roles = silent = tf.broadcast_to(kinds, tf.shape(times))
        num_runs, size = tf.unstack(tf.shape(roles))
        runs = tf.repeat(tf.range(num_runs), size)

        def submitted(run: tf.Tensor, role: tf.Tensor, place: Place) -> Any:
            run_values, clip_norms = tf.nest.map_structure(
                lambda values: tf.gather(values, run), (params, private.clip_norms)
            )
            return self._submitted(run_values, clip_norms, role, place)

        def summed(values: tf.Tensor) -> tf.Tensor:
            factors = tf.reshape(times, tf.concat([[-1], tf.ones_like(tf.shape(values)[1:])], 0))
            return tf.math.segment_sum(values * tf.cast(factors, values.dtype), runs)

        places = Place(tf.tile(tf.range(size), [num_runs]), tf.reshape(silent, [-1]))
        by_entry = vectorised_clients(submitted, runs, tf.reshape(roles, [-1]), places)
        return tf.nest.map_structure(summed, by_entry)

    def seen(self, private: PrivateState, summed: Any, num_others: tf.Tensor) -> tf.Tensor:
        """Returns the inner product <y, v> and <v, v>, as totals over groups.

        y is the run's noisy sum minus the other clients' contributions, and v is the attacked
        client's contribution. Both are in standard deviations of the noise.

        Args:
            private: State of the aggregation.
            summed: Sum of the messages.
            num_others: Number of participants other than the attacked client.
        """
        noisy, deviations = self.release.noisy_sums(private, summed, self._bounds)
        result = self._along(noisy, deviations)
        # With too few clients, the released sum is only zeros.
        shift = tf.where(tf.reduce_any(result != 0), self._shift, tf.zeros_like(self._shift))
        along = tf.reduce_sum((result - num_others * self._other) * shift)
        return tf.stack([along, tf.reduce_sum(shift**2)])

    def _answer(self, clip_norms: tf.Tensor, role: Any) -> Any:
        values = [tf.gather(tf.constant(answers), role) for answers in self._answers]
        norms = iter(tf.unstack(clip_norms))
        for group in self._groups:
            if group.is_update:
                norm = next(norms)
                for i in group.positions:
                    values[i] *= norm
        return tf.nest.pack_sequence_as(self._spec, values)

    def _submitted(self, params: Any, clip_norms: tf.Tensor, role: Any, place: Place) -> Any:
        answer, facts = self._answer(clip_norms, role), _facts(self.release, place)
        return self.release.encode(params, answer, self._bounds, facts)

    def _added(self, private: PrivateState, role: Role) -> tf.Tensor:
        """Returns a client's contribution to each group's sum, in standard deviations of noise.

        The contribution does not depend on the clip norm, which scales values and noise equally.
        """
        params, clip_norms = self.release.client_params(private), private.clip_norms
        submitted = self._submitted(params, clip_norms, role.value, _FIRST)
        _, deviations = self.release.noisy_sums(private, submitted, self._bounds)
        if isinstance(self.release, DistributedDpSum):
            answer = self._answer(clip_norms, role.value)
            values = self.release.clipped(clip_norms, answer, self._bounds)
        else:
            inner = self.release.inner.exact()
            bounds = self.release.released_bounds(self._bounds)
            _, values, _ = inner.decode((), submitted, bounds)
        return self._along(values, deviations)

    def _along(self, values: Any, deviations: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns each group's projection on its direction, in deviations of noise, [groups]."""
        flat = [tf.cast(value, tf.float64) for value in tf.nest.flatten(values)]
        result = []
        for group, parts in zip(self._groups, self._directions):
            along = [tf.reduce_sum(flat[i] * part) for i, part in zip(group.positions, parts)]
            result.append(tf.add_n(along) / deviations[group.positions[0]])
        return tf.stack(result)


def _answer_specs(round_: Round) -> list[Any]:
    """Returns specs of a client's output in each step."""
    actual = []

    def sum_step(k: int, message: Any, client_state: Any) -> ClientResult:
        step = round_.steps[k]

        def sent(message: Any, examples: Any, client_state: Any) -> Any:
            facts = _facts(step.aggregation, _FIRST)
            arrays = client_arrays(examples, client_state, facts.place)
            clients = dataclasses.replace(Clients.from_arrays(arrays), seed=facts.seed)
            result = client_result(step.step, step.step.client_work(message.broadcast, clients))
            params, bounds = message.aggregation, step.bounds
            encoded = step.aggregation.encode(params, result.output, bounds, facts)
            return result.output, ClientResult(encoded, result.state)

        output, result = traced_specs(sent, message, dict(round_.client_data_spec), client_state)
        actual.append(output)
        return result

    trace_steps(round_, sum_step)
    return actual


def _direction(group: Group, shapes: Sequence[Any]) -> list[np.ndarray]:
    """Returns a unit vector in the shapes of a group's values, with 1 in the first entry.

    Other directions would make integers fractional, and change many published weights slightly.
    """
    parts = [np.zeros(shapes[i]) for i in group.positions]
    parts[0].flat[0] = 1.0
    return parts


def _change(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    return tf.cast(after, tf.float64) - tf.cast(before, tf.float64)


def _facts(release: Any, place: Place) -> ClientFacts:
    nothing = tf.constant(0, tf.int64)
    return ClientFacts(nothing, nothing, place if release.numbers_clients else ())


def _columns(values: Sequence[Any], dtype: tf.DType, num_rows: tf.Tensor) -> tf.Tensor:
    """Returns values [R, ...] as columns of one matrix, with non-finite values replaced by 0."""
    result = [tf.zeros([num_rows, 0], dtype)]
    for value in values:
        if value.dtype.is_floating:
            value = tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))
        result.append(tf.reshape(tf.cast(value, dtype), [num_rows, -1]))
    return tf.concat(result, axis=1)
