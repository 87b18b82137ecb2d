"""The server of secure aggregation: collects a session's messages and unmasks the sum."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fleet.secure_aggregation import masks, messages, primitives, shamir
from fleet.secure_aggregation.errors import ProtocolError, SumError
from fleet.secure_aggregation.messages import SESSION_BYTES, Keys, Shares, Type, read_header
from fleet.secure_aggregation.roster import KEY, SEED, Roster, pair_sign
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SumPlan

_RESULT = 0
_MAX_NAMES = 10


@dataclasses.dataclass(frozen=True)
class _State:
    """The server's state in a session, except for the masked sums.

    Attributes:
        stage: Type of the answers to collect; 0 once the sum is unmasked.
        keys: KEYS messages of the roster.
        shares: SHARES messages of the clients that sent shares.
        survivors: Clients whose masked values are in the sum.
        votes: VOTE messages of the survivors that voted.
    """

    plan: bytes
    stage: int
    cohort: tuple[bytes, ...]
    keys: tuple[bytes, ...] = ()
    shares: tuple[bytes, ...] = ()
    survivors: tuple[bytes, ...] = ()
    votes: tuple[bytes, ...] = ()


class Server:
    """One session, which computes a sum over the surviving clients of a cohort.

    In each stage, the caller sends the messages of `requests`, passes the answers to `receive`, and
    calls `close` once all clients have answered or the timeout has passed. `close` writes the
    stage's result to the disk before the next stage begins. The answers within a stage are only in
    memory: after a restart, the server must ask for them again. Openings and unmasked sums are
    never written to a disk.

    Args:
        plan: Settings of the sum, from the server's own copy of the plan.
        folder: Folder of the server's sessions.
        session: Id of a session that `begin` created.
    """

    def __init__(
        self, plan: SumPlan, identities: Identities, folder: SessionFolder, session: bytes
    ) -> None:
        self._plan = plan
        self._identities = identities
        self._folder = folder
        self.session = session
        self._takes: dict[Type, Callable[[bytes, bytes, str], Any]] = {
            Type.KEYS: self._take_keys,
            Type.SHARES: self._take_shares,
            Type.MASKED: self._take_masked,
            Type.VOTE: self._take_vote,
            Type.OPENING: self._take_opening,
        }
        with folder.locked():
            stored = folder.read(session)
        if stored is None:
            raise SumError(f"{self._name}: expected a session that has begun, found none")
        state = _State(**stored[0])
        if state.plan != plan.digest():
            raise SumError(
                f"{self._name}: expected the plan that it began with, found a different plan"
            )
        self._resume(state, stored[1])

    @classmethod
    def begin(
        cls,
        plan: SumPlan,
        identities: Identities,
        folder: SessionFolder,
        cohort: Sequence[bytes],
        session: bytes | None = None,
    ) -> Server:
        """Begins a session.

        Args:
            cohort: Identities of the clients to ask.
            session: Unique session id of 32 bytes; random by default.
        """
        session = primitives.random_bytes(SESSION_BYTES) if session is None else session
        asked = tuple(sorted(set(cohort)))
        if len(session) != SESSION_BYTES or not set(asked) <= set(identities.names):
            raise ValueError("expected a session of 32 bytes and clients with identities")
        if not plan.min_clients <= len(asked) <= plan.max_clients:
            raise SumError(
                f"cohort: expected {plan.min_clients} to {plan.max_clients} clients, found "
                f"{len(asked)}"
            )
        with folder.locked():
            if folder.read(session) is not None:
                raise SumError(
                    f"session {session.hex()[:16]}: expected a new session, found one that has "
                    "begun"
                )
            folder.write(session, vars(_State(plan.digest(), int(Type.KEYS), asked)), b"")
        return cls(plan, identities, folder, session)

    def _resume(self, state: _State, tail: bytes) -> None:
        """Starts a stored state's stage again, without any answers."""
        self._state, self._tail = state, tail
        keys = [messages.read_keys(message, "roster") for message in state.keys]
        self._roster = Roster(self.session, keys)
        self._dealt = {
            message[messages.SENDER]: self._read_shares(message, "shares")
            for message in state.shares
        }
        # Digests and contents of this stage's answers, keyed by client.
        self._answers: dict[bytes, bytes] = {}
        self._read: dict[bytes, Any] = {}
        self._totals: list[np.ndarray] = []
        if self.stage == Type.MASKED:
            self._totals = [np.zeros(t.size, np.uint64) for t in self._plan.tensors]

    def _read_shares(self, message: bytes, where: str) -> Shares:
        holders = self._roster.holders(message[messages.SENDER])
        return messages.read_shares(message, holders, where)

    @property
    def _name(self) -> str:
        return f"session {self.session.hex()[:16]}"

    @property
    def stage(self) -> Type | None:
        """Type of the answers to collect; None once the sum is unmasked."""
        return Type(self._state.stage) if self._state.stage != _RESULT else None

    @property
    def asked(self) -> tuple[bytes, ...]:
        """The clients to ask in this stage."""
        return {
            Type.KEYS: self._state.cohort,
            Type.SHARES: tuple(self._roster.keys),
            Type.MASKED: tuple(self._dealt),
            Type.VOTE: self._state.survivors,
            Type.OPENING: tuple(m[messages.SENDER] for m in self._state.votes),
            None: (),
        }[self.stage]

    @property
    def missing(self) -> tuple[bytes, ...]:
        """The clients that have not answered in this stage."""
        return tuple(client for client in self.asked if client not in self._answers)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """The clients whose values are in the sum; empty before the MASKED stage is closed."""
        return self._state.survivors

    @property
    def min_answers(self) -> int:
        """Minimum number of answers before `close` may end this stage."""
        if self.stage == Type.KEYS:
            return self._plan.min_clients
        return max(self._plan.min_clients, self._plan.threshold(len(self._roster.keys)))

    def requests(self) -> dict[bytes, bytes]:
        """Returns this stage's messages, keyed by the receiving client."""
        session, state = self.session, self._state
        if self.stage == Type.MASKED:
            return {client: self._delivery(client) for client in self.asked}
        if self.stage == Type.KEYS:
            message = messages.begin_message(session, self._plan.digest())
        elif self.stage == Type.SHARES:
            message = messages.list_message(Type.ROSTER, session, state.keys)
        elif self.stage == Type.OPENING:
            message = messages.list_message(Type.VOTES, session, state.votes)
        else:
            message = messages.list_message(Type.SURVIVORS, session, state.survivors)
        return {client: message for client in self.asked}

    def _delivery(self, client: bytes) -> bytes:
        dealers = [d for d in self._roster.holders(client) if d in self._dealt and d != client]
        parcels = [
            (self._dealt[dealer].commitments[client], self._dealt[dealer].sealed[client])
            for dealer in dealers
        ]
        return messages.delivery_message(self.session, tuple(self._dealt), parcels)

    def receive(self, message: bytes) -> bytes:
        """Processes a client's answer, and returns the sender; a repeated answer has no effect.

        Raises:
            SumError: The answer is invalid, and has no effect.
        """
        where = "message of a client"
        kind, _ = read_header(message, self._plan, where)
        if self.stage is None:
            raise ProtocolError(
                f"{where}: expected no message, the sum of {self._name} is unmasked"
            )
        sender = messages.message_sender(message, self.stage, self.session, self._identities, where)
        where = f"{kind.name} of client {self._identities.name(sender)}"
        if sender not in self.asked:
            raise ProtocolError(f"{where}: expected one of the asked clients")
        hashed = primitives.digest("answer", message)
        if sender not in self._answers:
            self._read[sender] = self._takes[kind](message, sender, where)
            self._answers[sender] = hashed
        elif self._answers[sender] != hashed:
            raise ProtocolError(
                f"{where}: expected one answer, found a second, different answer", sender
            )
        return sender

    def close(self) -> None:
        """Ends the stage with the received answers, and begins the next one."""
        if self.stage is None:
            raise SumError(f"{self._name}: expected a stage to close, the sum is unmasked")
        if len(self._answers) < self.min_answers:
            listed = [self._identities.name(client) for client in self.missing[:_MAX_NAMES]]
            names = ", ".join([*listed, "..."] if len(self.missing) > len(listed) else listed)
            raise ProtocolError(
                f"{self._name}: expected {self.stage.name} of at least {self.min_answers} clients, "
                f"found {len(self._answers)} of {len(self.asked)}; missing: {names}"
            )
        state, tail = self._closed(self.stage)
        with self._folder.locked():
            stored = self._folder.read(self.session)
            if stored is None or stored[0] != vars(self._state):
                raise SumError(
                    f"{self._name}: expected one server, a second server has continued the session"
                )
            # Never store an unmasked sum: after a restart, the server asks for the openings again.
            if state.stage != _RESULT:
                self._folder.write(self.session, vars(state), tail)
        self._resume(state, tail)

    def result(self) -> dict[str, np.ndarray]:
        """Returns the unmasked sums, uint64, modulo each tensor's modulus, keyed by tensor name."""
        if self.stage is not None:
            raise SumError(
                f"{self._name}: expected an unmasked sum, the session waits for {self.stage.name}"
            )
        return {
            tensor.name: vector.reshape(tensor.shape)
            for tensor, vector in zip(self._plan.tensors, self._unpacked())
        }

    def _unpacked(self) -> list[np.ndarray]:
        vectors = self._plan.unpack(self._tail)
        assert vectors is not None, "packed by this class"
        return vectors

    # --- the stages

    def _closed(self, stage: Type) -> tuple[_State, bytes]:
        """Returns the initial state and the masked sums of the next stage."""
        clients = tuple(sorted(self._answers))
        answers = tuple(self._read[client] for client in clients)
        # The types of two successive stages differ by 2.
        begun = functools.partial(dataclasses.replace, self._state, stage=stage + 2)
        if stage == Type.KEYS:
            return begun(keys=tuple(keys.message for keys in answers)), b""
        if stage == Type.SHARES:
            return begun(shares=answers), b""
        if stage == Type.MASKED:
            return begun(survivors=clients), self._plan.pack(self._totals)
        if stage == Type.VOTE:
            return begun(votes=answers), self._tail
        return self._unmasked()

    def _take_keys(self, message: bytes, sender: bytes, where: str) -> Keys:
        keys = messages.read_keys(message, where)
        messages.check_keys([*self._read.values(), keys], self._plan, self._identities, where)
        for public in (keys.sealing, keys.masking):
            try:
                primitives.agree(primitives.random_bytes(primitives.KEY_BYTES), public)
            except ValueError:
                raise ProtocolError(
                    f"{where}: expected a key of X25519, found a weak one", sender
                ) from None
        return keys

    def _take_shares(self, message: bytes, sender: bytes, where: str) -> bytes:
        self._read_shares(message, where)
        return message

    def _take_masked(self, message: bytes, sender: bytes, where: str) -> None:
        vectors = messages.read_masked(message, self._plan, where)
        for tensor, total, vector in zip(self._plan.tensors, self._totals, vectors):
            masks.add_into(total, vector, tensor.modulus)

    def _take_vote(self, message: bytes, sender: bytes, where: str) -> bytes:
        expected = self._roster.survivors_digest(self._state.survivors)
        if messages.read_vote(message, where) != expected:
            raise ProtocolError(f"{where}: expected the survivors that the server sent", sender)
        return message

    def _dealers(self, holder: bytes) -> list[bytes]:
        """Returns the dealers that sent shares to a holder."""
        return [dealer for dealer in self._roster.holders(holder) if dealer in self._dealt]

    def _take_opening(self, message: bytes, sender: bytes, where: str) -> dict[bytes, bytes]:
        """Checks shares against the dealers' commitments, and returns the shares by dealer."""
        dealers = self._dealers(sender)
        shares = dict(zip(dealers, messages.read_opening(message, len(dealers), where)))
        for dealer, share in shares.items():
            bound = self._dealt[dealer].commitments[sender]
            label, expected = (
                (SEED, bound.seed) if dealer in self._state.survivors else (KEY, bound.key)
            )
            actual = self._roster.share_commitment(dealer, sender, label, share)
            if actual != expected or not shamir.is_share(share):
                raise ProtocolError(
                    f"{where}: expected the share that client {self._identities.name(dealer)} gave "
                    "it, found a different one",
                    sender,
                )
        return shares

    def _unmasked(self) -> tuple[_State, bytes]:
        """Returns the final state, and the sums without masks."""
        totals = self._unpacked()
        keys = [self._removed(dealer) for dealer in self._dealt]
        # Every secret was checked above, before the first mask is removed.
        for key, sign in itertools.chain.from_iterable(keys):
            self._plan.apply_masks(totals, key, sign)
        over = _State(
            self._state.plan, _RESULT, self._state.cohort, survivors=self._state.survivors
        )
        return over, self._plan.pack(totals)

    def _removed(self, dealer: bytes) -> list[tuple[bytes, int]]:
        """Returns the keys and signs of the masks to remove, given a dealer's revealed shares."""
        roster, survivors = self._roster, self._state.survivors
        holders = roster.holders(dealer)
        threshold = self._plan.threshold(len(holders))
        shares = {
            roster.point(holder): self._read[holder][dealer]
            for holder in [h for h in holders if h in self._read][:threshold]
        }
        if len(shares) < threshold:
            raise ProtocolError(
                f"{self._name}: expected {threshold} shares of client "
                f"{self._identities.name(dealer)}, found {len(shares)}"
            )
        secret = shamir.combine(shares)
        if dealer in survivors:
            bound = self._dealt[dealer].seed
            if secret is None or roster.seed_commitment(dealer, secret) != bound:
                raise self._dealt_wrong(dealer, "seed")
            return [(roster.own_key(secret, dealer), -1)]
        public = roster.keys[dealer].masking
        if secret is None or primitives.exchange_public(secret) != public:
            raise self._dealt_wrong(dealer, "key")
        # The total contains the survivors' pairwise masks with a vanished client.
        return [
            (roster.pair_key(secret, dealer, other), pair_sign(dealer, other))
            for other in holders
            if other in survivors
        ]

    def _dealt_wrong(self, dealer: bytes, what: str) -> ProtocolError:
        return ProtocolError(
            f"{self._name}: client {self._identities.name(dealer)}: expected shares of the {what} "
            "that match its commitments, found different ones: begin another session without this "
            "client",
            dealer,
        )
