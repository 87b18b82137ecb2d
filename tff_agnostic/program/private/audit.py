"""Private rounds attacked: whole rounds with a worst-case client and without it, thousands of runs.

The client sends the bound of every group of its answer in a fixed direction; all others send the
opposite, and the attacker knows them. Each run has a key of its own, cohorts are those that the
package draws, and server and aggregation do all that they do in a run: start, encode, sum, decode,
finish. Only what clients compute from their examples is left out, as any answer may be theirs.

Two attackers look at each run. One sees what leaves the noise: the noisy sums of all groups, and
whatever of the summed message has no noise, such as a number of clients. Its score is the
likelihood ratio, which no other score beats. The other one sees what is published: how each round
changes the state of the algorithm, and the report. `lower_bound` has what the scores prove.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from scipy.special import logsumexp

from tff_agnostic.aggregations.aggregation import ClientFacts
from tff_agnostic.aggregations.private.distributed_sum import DistributedSum
from tff_agnostic.aggregations.private.groups import Group
from tff_agnostic.aggregations.private.private_release import PrivateRelease, PrivateState
from tff_agnostic.computations.aggregated import AggregatedExchange, AggregatedRound, SumsSoFar
from tff_agnostic.computations.client_group import clients_in_step, group_of_one, one_client
from tff_agnostic.computations.exchange import RunState
from tff_agnostic.privacy.lower_bound import LowerBound, lower_bound
from tff_agnostic.program.private.run_keys import cohort_seed

# Entries of cohorts, of all runs together, that are played at once; more take more memory.
_ENTRIES_AT_ONCE = 40_000
# Keys with which it is found out what of a message has no noise.
_PROBES = 16
# A hair less than the bound of a group: float32 must not make it longer, so that it is clipped.
_WITHIN = 1 - 1e-6
# Updates of the others exceed the clip norm, which the client's does not: adaptive bits differ.
_BEYOND = 1.5
# Of the mean variance, added to each: features may be functions of one another.
_RIDGE = 1e-3


class Role(enum.IntEnum):
    """What an entry of a cohort sends.

    Attributes:
        NOBODY: Nothing: there is no such entry.
        OTHER: The opposite of what the attacked client sends.
        ZEROS: Zeros, as a client whose values were exchanged for them.
        CLIENT: What the attacked client sends.
    """

    NOBODY = 0
    OTHER = 1
    ZEROS = 2
    CLIENT = 3


@dataclasses.dataclass(frozen=True)
class Attack:
    """Runs, and the client that is to be found in them.

    Attributes:
        round_: The rounds, with private sums.
        rounds: T, of each run.
        cohort: (secret seed of a run, number of a round from 1) -> the clients that take part.
        client: Which of them is attacked.
        chances: With which chance it takes part in each round [T], as the attacker knows it: 0 or
            1 where cohorts are no secret.
        without: What it sends in runs without it: nothing, zeros, or what the others send.
        noise_covariance: Of the noise of a value between rounds [T, T], in variances of one round;
            None if rounds have independent noise.
    """

    round_: AggregatedRound
    rounds: int
    cohort: Callable[[int, int], Sequence[str]]
    client: str
    chances: np.ndarray
    without: Role = Role.NOBODY
    noise_covariance: Optional[np.ndarray] = None


class Findings(NamedTuple):
    """What the attackers prove.

    Attributes:
        noisy_sums: The one that sees noisy sums, and what has no noise.
        published: The one that sees what is published.
        shift: By how many standard deviations of its noise the client moves the sums of a round,
            all groups together: one over the noise multiplier, or twice that where clients are
            replaced.
        runs: Runs with the client; there are as many without it.
    """

    noisy_sums: LowerBound
    published: LowerBound
    shift: float
    runs: int


class _Views(NamedTuple):
    """What is seen of runs, [R, T] or [R, T, ...].

    Attributes:
        seen: Noisy sums in the client's direction, less those of the others, of unit noise.
        shift: What the client adds to that.
        in_the_clear: What of the message has no noise, less the others'.
        published: How the state changed, and the report.
        num_others: How many others took part.
    """

    seen: np.ndarray
    shift: np.ndarray
    in_the_clear: np.ndarray
    published: np.ndarray
    num_others: np.ndarray


def attack(plan: Attack, runs: int, delta: float, seed: int) -> Findings:
    """Plays runs with and without the client, and returns what they prove.

    Args:
        plan: What is played.
        runs: How many with the client, and without it.
        delta: The delta that epsilon is for.
        seed: What the keys of runs are drawn with.
    """
    rng = np.random.default_rng(seed)
    stage = _Stage(plan)
    without, with_client = (
        stage.play(rng.integers(2**63, size=[runs, 2], dtype=np.int64), role)
        for role in (plan.without, Role.CLIENT)
    )
    both = (without, with_client)
    published = [
        np.concatenate([views.published, views.num_others[..., np.newaxis]], axis=-1)
        for views in both
    ]
    return Findings(
        lower_bound(*(stage.log_likelihood_ratio(views) for views in both), delta),
        lower_bound(*_discriminated(*published), delta),
        float(np.max(np.mean(with_client.shift, axis=0))),
        runs,
    )


class _Stage:
    """The rounds of an attack as one graph for many runs, in step."""

    def __init__(self, plan: Attack) -> None:
        self._plan = plan
        round_ = plan.round_
        self._exchanges = [
            _AttackedExchange(exchange, spec, plan.without)
            for exchange, spec in zip(round_.exchanges, _answer_specs(round_))
        ]
        self._initial = round_.initialize()
        self._is_in_the_clear, self._references = self._probed()

    def play(self, keys: np.ndarray, role: Role) -> _Views:
        """Plays a run for each key, in which the client has a role."""
        cohorts = [self._cohorts(key, role) for key in keys]
        size = max(len(roles) for run in cohorts for roles in run)
        at_once = max(1, _ENTRIES_AT_ONCE // max(size, 1))
        parts = [
            self._play(keys[k : k + at_once], _padded(cohorts[k : k + at_once], size))
            for k in range(0, len(keys), at_once)
        ]
        return _Views(*map(np.concatenate, zip(*parts)))

    def log_likelihood_ratio(self, views: _Views) -> np.ndarray:
        """Returns the score of each run: of all rounds, as coins and noise are independent."""
        plan = self._plan
        seen, shift, chances = views.seen, views.shift, plan.chances
        if plan.noise_covariance is not None:
            # Cohorts are no secret: what the client adds to each round is known, and is whitened
            # with the noise.
            root = np.linalg.cholesky(plan.noise_covariance)
            seen, shift = (np.linalg.solve(root, v.T).T for v in (seen, shift * chances))
            chances = np.ones(plan.rounds)
        left_out, zeros, client = (
            self._references[role] for role in (Role.NOBODY, Role.ZEROS, Role.CLIENT)
        )
        nothing = np.zeros_like(shift)
        base = self._references[plan.without]
        out = (1 - chances, nothing, left_out)
        with_client = [out, (chances, shift, client - base if plan.without is Role.OTHER else client)]
        without = [(np.ones(plan.rounds), nothing, left_out)]
        if plan.without is Role.ZEROS:
            without = [out, (chances, nothing, zeros)]
        log_with, log_without = (
            _log_likelihood(seen, views.in_the_clear, cases) for cases in (with_client, without)
        )
        if np.any(np.isneginf(log_with) & np.isneginf(log_without)):
            raise ValueError("a message has something in the clear that no client sends")
        return np.sum(log_with - log_without, axis=1)

    def _cohorts(self, key: np.ndarray, role: Role) -> list[list[Role]]:
        """Returns the role of each entry of each round's cohort."""
        plan = self._plan
        seed = cohort_seed(RunState((), (PrivateState(key, (), (), ()),), ()))
        roles = []
        for t in range(plan.rounds):
            drawn = plan.cohort(seed, t + 1)
            found = [role if name == plan.client else Role.OTHER for name in drawn]
            roles.append([each for each in found if each is not Role.NOBODY])
        return roles

    def _play(self, keys: np.ndarray, roles: np.ndarray) -> _Views:
        num_others = np.sum(roles == Role.OTHER, axis=2)
        if self._plan.without is Role.OTHER:
            # The attacker does not know whether it is the client that was drawn.
            num_others = np.sum(roles != Role.NOBODY, axis=2)
        state = self._state(keys)
        views = []
        for t in range(self._plan.rounds):
            known = tf.constant(num_others[:, t], tf.float64)
            state, watched, message, published = self._round(
                state, tf.constant(roles[:, t], tf.int32), known
            )
            others = num_others[:, t, np.newaxis] * self._references[Role.OTHER]
            in_the_clear = message.numpy()[:, self._is_in_the_clear] - others
            views.append(
                (*watched.numpy().T, in_the_clear, published.numpy(), num_others[:, t])
            )
        return _Views(*(np.stack(of_rounds, axis=1) for of_rounds in zip(*views)))

    def _probed(self) -> tuple[np.ndarray, dict[Role, np.ndarray]]:
        """Returns what of a message is the same with any key, and what each role adds to that."""
        messages = {}
        for role in Role:
            keys = np.arange(2 * _PROBES).reshape([-1, 2])
            roles = np.full([_PROBES, 1], role, np.int32)
            _, _, message, _ = self._round(
                self._state(keys), tf.constant(roles), tf.zeros([_PROBES], tf.float64)
            )
            messages[role] = message.numpy()
        found = np.all([np.ptp(m, axis=0) == 0 for m in messages.values()], axis=0)
        return found, {role: message[0, found] for role, message in messages.items()}

    def _state(self, keys: np.ndarray) -> RunState:
        """Returns the first state of runs, with a leading axis of runs."""
        state = tf.nest.map_structure(
            lambda value: tf.repeat(tf.convert_to_tensor(value)[tf.newaxis], len(keys), axis=0),
            self._initial,
        )
        return state._replace(
            aggregations=tuple(
                each._replace(noise_key=tf.constant(keys, tf.int64)) for each in state.aggregations
            )
        )

    @functools.cached_property
    def _round(self) -> Any:
        state = tf.nest.map_structure(
            lambda value: tf.TensorSpec([None, *value.shape], value.dtype),
            tf.nest.map_structure(tf.convert_to_tensor, self._initial),
        )
        roles, num_others = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.float64)
        return tf.function(self._played, [state, roles, num_others], autograph=False)

    def _played(self, state: RunState, roles: tf.Tensor, num_others: tf.Tensor) -> Any:
        """Returns a round of all runs: (state, what is seen and its shift, message, published)."""
        round_ = self._plan.round_
        so_far, messages, sums = SumsSoFar(), [], []
        message = clients_in_step(round_.start, state)
        # Equal in all runs: not an axis of runs, by which a loop over a tree's levels would differ.
        releases = [each.releases[0] for each in state.aggregations]
        for k, exchange in enumerate(self._exchanges):
            summed = exchange.summed(message.aggregation, state.aggregations[k], roles)
            if isinstance(exchange.release, DistributedSum):
                # With noise of the server's nobody else sees a message.
                messages += tf.nest.flatten(summed)

            def watched(private: PrivateState, summed: Any, others: tf.Tensor, k: int = k) -> Any:
                private = private._replace(releases=releases[k])
                return self._exchanges[k].watched(private, summed, others)

            sums.append(clients_in_step(watched, state.aggregations[k], summed, num_others))

            def following(state: RunState, so_far: SumsSoFar, summed: Any, k: int = k) -> Any:
                private = [
                    each._replace(releases=release)
                    for each, release in zip(state.aggregations, releases)
                ]
                state = state._replace(aggregations=tuple(private))
                is_last = k == len(self._exchanges) - 1
                return (round_.finish if is_last else round_.go_on)(state, so_far, summed)

            message, so_far = clients_in_step(following, state, so_far, summed)
        next_state, report = message, so_far
        along, square = (tf.add_n([each[:, i] for each in sums]) for i in range(2))
        shift = tf.sqrt(square)
        seen = tf.math.divide_no_nan(along, shift)
        changes = tf.nest.map_structure(_change, state.algorithm, next_state.algorithm)
        return (
            next_state,
            tf.stack([seen, shift], axis=1),
            _columns(messages, tf.int64, tf.shape(roles)[0]),
            _columns(tf.nest.flatten([changes, report]), tf.float64, tf.shape(roles)[0]),
        )


class _AttackedExchange:
    """An exchange, with what each role sends in it.

    Attributes:
        release: Its private sums.
    """

    def __init__(self, exchange: AggregatedExchange, spec: Any, without: Role) -> None:
        self._exchange, self._spec = exchange, spec
        self.release: PrivateRelease = exchange.aggregation
        self._groups = self.release.groups(exchange.bounds)
        flat = tf.nest.flatten(spec)
        # An adaptive clip norm's bits come after the answer.
        shapes = [value.shape for value in flat] + [[]] * sum(g.is_update for g in self._groups)
        self._directions = [_direction(group, shapes) for group in self._groups]
        self._answers = [np.zeros([len(Role), *v.shape], v.dtype.as_numpy_dtype) for v in flat]
        for group, direction in zip(self._groups, self._directions):
            for i, part in zip(group.positions, direction):
                if i < len(flat):
                    room = (_BEYOND, _WITHIN) if group.is_update else (1, 1)
                    self._answers[i][Role.OTHER] = -room[0] * group.limit * part
                    self._answers[i][Role.CLIENT] = room[1] * group.limit * part
        self._other = self._without_noise(Role.OTHER)
        base = self._without_noise(Role.ZEROS if without is Role.NOBODY else without)
        self._shift = self._without_noise(Role.CLIENT) - base

    def summed(self, params: Any, private: PrivateState, roles: tf.Tensor) -> Any:
        """Returns the sum of what the entries of each run's cohort submit.

        Args:
            params: What clients are sent, of each run.
            private: State of the aggregation, of each run.
            roles: Of the entries, int32 [R, entries].
        """
        times = tf.cast(roles != Role.NOBODY.value, tf.int32)
        if not self.release.numbers_clients:
            # Equal answers are submitted equally, so that it is enough to count them.
            kinds = tf.constant([role.value for role in (Role.OTHER, Role.CLIENT)])
            times = tf.reduce_sum(tf.cast(roles[..., tf.newaxis] == kinds, tf.int32), axis=1)
            roles = tf.broadcast_to(kinds, tf.shape(times))
        num_runs, size = tf.unstack(tf.shape(roles))
        runs = tf.repeat(tf.range(num_runs), size)

        def submitted(run: tf.Tensor, role: tf.Tensor, place: tf.Tensor) -> Any:
            of_run, clip_norms = tf.nest.map_structure(
                lambda values: tf.gather(values, run), (params, private.clip_norms)
            )
            facts = _facts(place if self.release.numbers_clients else ())
            answer = self._answer(clip_norms, role)
            return self.release.encode(of_run, answer, self._exchange.bounds, facts)

        def summed(values: tf.Tensor) -> tf.Tensor:
            factors = tf.reshape(times, tf.concat([[-1], tf.ones_like(tf.shape(values)[1:])], 0))
            return tf.math.segment_sum(values * tf.cast(factors, values.dtype), runs)

        places = tf.tile(tf.range(size), [num_runs])
        by_entry = clients_in_step(submitted, runs, tf.reshape(roles, [-1]), places)
        return tf.nest.map_structure(summed, by_entry)

    def watched(self, private: PrivateState, summed: Any, num_others: tf.Tensor) -> tf.Tensor:
        """Returns the noisy sums of one run, less what others add, along what the client adds.

        In standard deviations of the noise, with the square of how far the client moves them; both
        of all groups together.

        Args:
            private: State of the aggregation.
            summed: The sum.
            num_others: How many others there are.
        """
        noisy, deviations = self.release.noisy_sums(private, summed, self._exchange.bounds)
        found = self._along(noisy, deviations)
        # A sum of too few clients, which is not looked at, is of zeros.
        shift = tf.where(tf.reduce_any(found != 0), self._shift, tf.zeros_like(self._shift))
        return tf.stack(
            [tf.reduce_sum((found - num_others * self._other) * shift), tf.reduce_sum(shift**2)]
        )

    def _answer(self, clip_norms: tf.Tensor, role: Any) -> Any:
        values = [tf.gather(tf.constant(answers), role) for answers in self._answers]
        norms = iter(tf.unstack(clip_norms))
        for group in self._groups:
            if group.is_update:
                norm = next(norms)
                for i in group.positions:
                    values[i] *= norm
        return tf.nest.pack_sequence_as(self._spec, values)

    def _without_noise(self, role: Role) -> tf.Tensor:
        """Returns what a client with a role adds to the sums of groups, in standard deviations.

        It is the same at any clip norm: values and noise grow with it.
        """
        private, bounds = self._exchange.initialize(), self._exchange.bounds
        answer = self._answer(private.clip_norms, role.value)
        params = self.release.client_params(private)
        place = tf.constant(0) if self.release.numbers_clients else ()
        submitted = self.release.encode(params, answer, bounds, _facts(place))
        _, deviations = self.release.noisy_sums(private, submitted, bounds)
        if isinstance(self.release, DistributedSum):
            values = self.release.clipped(private.clip_norms, answer, bounds)
        else:
            _, values, _ = self.release.inner.decode(
                (), submitted, self.release.released_bounds(bounds)
            )
        return self._along(values, deviations)

    def _along(self, values: Any, deviations: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the part of each group in its direction, in deviations of its noise, [groups]."""
        flat = [tf.cast(value, tf.float64) for value in tf.nest.flatten(values)]
        found = []
        for group, parts in zip(self._groups, self._directions):
            along = [tf.reduce_sum(flat[i] * part) for i, part in zip(group.positions, parts)]
            found.append(tf.add_n(along) / deviations[group.positions[0]])
        return tf.stack(found)


def _answer_specs(round_: AggregatedRound) -> list[Any]:
    """Returns specs of what a client answers in each exchange."""
    state = _traced(round_.initialize)
    message, so_far, kept = _traced(round_.start, state), SumsSoFar(), ()
    found = []
    for k, exchange in enumerate(round_.exchanges):

        def answered(message: Any, examples: Any, kept: Any, exchange: Any = exchange) -> Any:
            place = tf.constant(0) if exchange.aggregation.numbers_clients else ()
            client = group_of_one(examples, kept, place)
            nothing = tf.constant(0, tf.int64)
            answer = exchange.exchange.client(message.broadcast, client, nothing, one_client)
            answer, kept = answer if exchange.exchange.keeps else (answer, kept)
            params, bounds = message.aggregation, exchange.bounds
            return answer, kept, exchange.aggregation.encode(params, answer, bounds, _facts(place))

        answer, kept, submitted = _traced(answered, message, dict(round_.client_data_spec), kept)
        found.append(answer)
        if k < len(round_.exchanges) - 1:
            message, so_far = _traced(round_.go_on, state, so_far, submitted)
    return found


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns specs of what a function of tensors of some specs returns."""
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )


def _direction(group: Group, shapes: Sequence[Any]) -> list[np.ndarray]:
    """Returns a unit vector, cut into the values of a group.

    All entries of an update; of other values the first one, as whole numbers cannot be divided.
    """
    parts = [np.zeros(shapes[i]) for i in group.positions]
    if not group.is_update:
        parts[0].flat[0] = 1.0
        return parts
    return [part + 1 / math.sqrt(sum(p.size for p in parts)) for part in parts]


def _log_likelihood(
    seen: np.ndarray,
    in_the_clear: np.ndarray,
    cases: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Returns the logarithm of the likelihood of each round [R, T], but for a common factor.

    Args:
        seen: Of unit noise [R, T].
        in_the_clear: [R, T, entries].
        cases: (chance of the case [T], what the noise is added to [R, T], what is in the clear).
    """
    terms = []
    for chance, shift, clear in cases:
        is_possible = np.all(in_the_clear == clear, axis=-1) & (chance > 0)
        log_chance = np.log(chance, out=np.zeros_like(chance), where=chance > 0)
        terms.append(np.where(is_possible, log_chance + seen * shift - shift**2 / 2, -np.inf))
    found: np.ndarray = logsumexp(terms, axis=0)
    return found


def _discriminated(without: np.ndarray, with_client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of runs [R] from features of their rounds [R, T, F].

    Linear discriminants, of the features of each round, and of the rounds. They are those of the
    first half of the runs, which `lower_bound` chooses by as well.
    """
    half = len(without) // 2

    def scored(without: np.ndarray, with_client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = np.concatenate([without[:half], with_client[:half]])
        scale = np.std(both, axis=0)
        scale[scale == 0] = 1.0
        a, b = ((values - np.mean(both, axis=0)) / scale for values in (without, with_client))
        spread = np.cov(a[:half], rowvar=False) + np.cov(b[:half], rowvar=False)
        spread = np.atleast_2d(spread) / 2 + _RIDGE * np.eye(a.shape[1])
        weights = np.linalg.solve(spread, np.mean(b[:half], axis=0) - np.mean(a[:half], axis=0))
        return a @ weights, b @ weights

    rounds = [scored(without[:, t], with_client[:, t]) for t in range(without.shape[1])]
    return scored(*(np.stack(of_rounds, axis=1) for of_rounds in zip(*rounds)))


def _padded(cohorts: Sequence[Sequence[Sequence[Role]]], size: int) -> np.ndarray:
    """Returns roles [R, T, size]; entries that a cohort does not have are nobody."""
    found = np.full([len(cohorts), len(cohorts[0]), size], Role.NOBODY, np.int32)
    for run, of_rounds in zip(found, cohorts):
        for entries, roles in zip(run, of_rounds):
            entries[: len(roles)] = roles
    return found


def _change(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    return tf.cast(after, tf.float64) - tf.cast(before, tf.float64)


def _facts(place: Any) -> ClientFacts:
    nothing = tf.constant(0, tf.int64)
    return ClientFacts(nothing, nothing, place)


def _columns(values: Sequence[Any], dtype: tf.DType, num_rows: tf.Tensor) -> tf.Tensor:
    """Returns values [R, ...] as columns of one matrix; what is not finite is zero."""
    found = [tf.zeros([num_rows, 0], dtype)]
    for value in values:
        if value.dtype.is_floating:
            value = tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))
        found.append(tf.reshape(tf.cast(value, dtype), [num_rows, -1]))
    return tf.concat(found, axis=1)
