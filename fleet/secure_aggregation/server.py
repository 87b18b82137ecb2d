"""The server of secure aggregation: collects a session's messages and opens the sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fleet.secure_aggregation import masks, messages, primitives, shamir
from fleet.secure_aggregation import roster as rosters
from fleet.secure_aggregation.errors import ProtocolError, SumError
from fleet.secure_aggregation.messages import (
    SESSION_BYTES,
    Commitments,
    Keys,
    Type,
    read_header,
)
from fleet.secure_aggregation.roster import Roster
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SumPlan

_RESULT = 0
# Of those who are missing.
_MOST_NAMES = 10


@dataclasses.dataclass(frozen=True)
class _State:
    """What the server keeps of a session, along with its masked sums.

    Attributes:
        plan: Digest of the `SumPlan`.
        stage: The type of the answers that are collected, 0 when the sum is opened.
        cohort: Who was asked to take part.
        keys: Messages KEYS of the roster.
        shares: Messages SHARES of the sharers.
        survivors: Whose masked values are in the sum.
        votes: Messages VOTE.
    """

    plan: bytes
    stage: int
    cohort: tuple[bytes, ...]
    keys: tuple[bytes, ...] = ()
    shares: tuple[bytes, ...] = ()
    survivors: tuple[bytes, ...] = ()
    votes: tuple[bytes, ...] = ()


class Server:
    """One session: a sum over those of a cohort who stay.

    Stages follow one another: `requests` says what to send to whom, `receive` takes the answers as
    they come, and `close` ends the stage when all have answered or a transport has waited long
    enough. What a stage ended with is on the disk before the next stage's requests can be sent.
    Answers of a stage that was not closed are lost with the process, and are asked for again; so
    are openings, and no opened sum is written to a disk.

    Args:
        plan: From the server's own copy of the plan.
        identities: All clients of the fleet.
        folder: Where it keeps its sessions.
        session: Of a session that `begin` has begun.
    """

    def __init__(
        self, plan: SumPlan, identities: Identities, folder: SessionFolder, session: bytes
    ) -> None:
        self._plan = plan
        self._identities = identities
        self._folder = folder
        self.session = session
        self._stages = {
            Type.KEYS: _Stage(self._take_keys, self._close_keys),
            Type.SHARES: _Stage(self._take_shares, self._close_shares),
            Type.MASKED: _Stage(self._take_masked, self._close_masked),
            Type.VOTE: _Stage(self._take_vote, self._close_votes),
            Type.OPENING: _Stage(self._take_opening, self._close_openings),
        }
        with folder.locked():
            stored = folder.read(session)
        if stored is None:
            raise SumError(f"{self._name}: expected a session that began, found none")
        state = _State(**stored[0])
        if state.plan != plan.digest():
            raise SumError(f"{self._name}: expected the plan that it began with, found another")
        self._go_on(state, stored[1])

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
            cohort: Identities of the clients that are asked.
            session: 32 bytes that no other session has; random by default.
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
                raise SumError(f"session {session.hex()[:16]}: expected a new one, found it begun")
            folder.write(session, vars(_State(plan.digest(), int(Type.KEYS), asked)), b"")
        return cls(plan, identities, folder, session)

    def _go_on(self, state: _State, tail: bytes) -> None:
        """Begins the stage of a state that is on the disk."""
        self._state, self._tail = state, tail
        keys = [messages.read_keys(message, "roster") for message in state.keys]
        self._roster = Roster(self.session, keys)
        self._dealt = self._parcels(state.shares)
        # What came in this stage, and what it was read to.
        self._answers: dict[bytes, bytes] = {}
        self._read: dict[bytes, Any] = {}
        self._totals: list[np.ndarray] = []
        if self.stage == Type.MASKED:
            self._totals = [np.zeros(t.size, np.uint64) for t in self._plan.tensors]

    def _parcels(self, shares: Sequence[bytes]) -> dict[bytes, _ReceivedShares]:
        """Returns what each sharer has dealt, by its identity."""
        dealt = {}
        for message in shares:
            sender = message[messages.SENDER]
            holders = self._roster.holders(sender)
            read = messages.read_shares(message, len(holders), "shares")
            others = [holder for holder in holders if holder != sender]
            dealt[sender] = _ReceivedShares(
                read.seed,
                dict(zip(holders, read.commitments)),
                dict(zip(others, read.sealed)),
            )
        return dealt

    @property
    def _name(self) -> str:
        return f"session {self.session.hex()[:16]}"

    @property
    def stage(self) -> Type | None:
        """The type of the answers that are collected now; None when the sum is opened."""
        return Type(self._state.stage) if self._state.stage != _RESULT else None

    @property
    def asked(self) -> tuple[bytes, ...]:
        """Who is asked in this stage."""
        return {
            Type.KEYS: self._state.cohort,
            Type.SHARES: tuple(self._roster.keys),
            Type.MASKED: tuple(self._dealt),
            Type.VOTE: self._state.survivors,
            Type.OPENING: self._voters or self._state.survivors,
            None: (),
        }[self.stage]

    @property
    def _voters(self) -> tuple[bytes, ...]:
        return tuple(message[messages.SENDER] for message in self._state.votes)

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Who is asked in this stage and has not answered."""
        return tuple(client for client in self.asked if client not in self._answers)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """Whose values are in the sum, once their masked values have come."""
        return self._state.survivors

    @property
    def fewest(self) -> int:
        """How many have to answer in this stage, so that it can be closed."""
        if self.stage == Type.KEYS:
            return self._plan.min_clients
        return max(self._plan.min_clients, self._plan.threshold(len(self._roster.keys)))

    def requests(self) -> dict[bytes, bytes]:
        """Returns the messages of this stage by the client that gets them."""
        session, state = self.session, self._state
        if self.stage == Type.MASKED:
            return {client: self._delivery(client) for client in self.asked}
        if self.stage == Type.KEYS:
            message = messages.begin_message(session, self._plan.digest())
        elif self.stage == Type.SHARES:
            message = messages.roster_message(session, tuple(self._roster.keys.values()))
        elif self.stage == Type.OPENING and self._plan.checks_survivors:
            message = messages.votes_message(session, state.votes)
        else:
            message = messages.survivors_message(session, state.survivors)
        return {client: message for client in self.asked}

    def _delivery(self, client: bytes) -> bytes:
        dealers = [d for d in self._roster.holders(client) if d in self._dealt and d != client]
        parcels = [
            (self._dealt[dealer].commitments[client], self._dealt[dealer].sealed[client])
            for dealer in dealers
        ]
        return messages.delivery_message(self.session, tuple(self._dealt), parcels)

    def receive(self, message: bytes) -> bytes:
        """Takes a client's answer, and returns who sent it; the same answer again does nothing.

        What is refused is as if it had not come.
        """
        where = "message of a client"
        kind, _ = read_header(message, self._plan, where)
        if self.stage is None:
            raise ProtocolError(f"{where}: expected none, the sum of {self._name} is opened")
        sender = messages.sender_of(message, self.stage, self.session, self._identities, where)
        where = f"{kind.name} of client {self._identities.name(sender)}"
        if sender not in self.asked:
            raise ProtocolError(f"{where}: expected a client that was asked, it was not")
        hashed = primitives.digest("answer", message)
        if sender not in self._answers:
            self._read[sender] = self._stages[kind].take(message, sender, where)
            self._answers[sender] = hashed
        elif self._answers[sender] != hashed:
            raise ProtocolError(f"{where}: expected one, found a second that differs", sender)
        return sender

    def close(self) -> None:
        """Ends the stage with those who have answered, and begins the next one."""
        if self.stage is None:
            raise SumError(f"{self._name}: expected a stage to end, the sum is opened")
        if len(self._answers) < self.fewest:
            some = [self._identities.name(client) for client in self.missing[:_MOST_NAMES]]
            names = ", ".join([*some, "..."] if len(self.missing) > len(some) else some)
            raise ProtocolError(
                f"{self._name}: expected {self.stage.name} of at least {self.fewest} clients, "
                f"found {len(self._answers)} of {len(self.asked)}; missing: {names}"
            )
        state, tail = self._stages[self.stage].close()
        with self._folder.locked():
            stored = self._folder.read(self.session)
            if stored is None or stored[0] != vars(self._state):
                raise SumError(
                    f"{self._name}: expected one server, another one has gone on with it"
                )
            # An opened sum is in memory alone. Another process asks for the openings again, which
            # clients answer with the same bytes.
            if state.stage != _RESULT:
                self._folder.write(self.session, vars(state), tail)
        self._go_on(state, tail)

    def result(self) -> dict[str, np.ndarray]:
        """Returns the sums by the tensors' names, uint64, modulo each tensor's modulus."""
        if self.stage is not None:
            raise SumError(f"{self._name}: expected an opened sum, it waits for {self.stage.name}")
        vectors = self._plan.unpack(self._tail)
        if vectors is None:
            raise SumError(f"{self._name}: expected sums below their moduli, found a larger one")
        return {
            tensor.name: vector.reshape(tensor.shape)
            for tensor, vector in zip(self._plan.tensors, vectors)
        }

    # --- the stages: what an answer is read to, and what follows from all of them

    def _come(self) -> tuple[bytes, ...]:
        """Returns who has answered, in ascending order."""
        return tuple(sorted(self._answers))

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

    def _close_keys(self) -> tuple[_State, bytes]:
        keys = tuple(self._read[client].message for client in self._come())
        return dataclasses.replace(self._state, stage=int(Type.SHARES), keys=keys), b""

    def _take_shares(self, message: bytes, sender: bytes, where: str) -> bytes:
        messages.read_shares(message, len(self._roster.holders(sender)), where)
        return message

    def _close_shares(self) -> tuple[_State, bytes]:
        shares = tuple(self._read[client] for client in self._come())
        return dataclasses.replace(self._state, stage=int(Type.MASKED), shares=shares), b""

    def _take_masked(self, message: bytes, sender: bytes, where: str) -> None:
        vectors = messages.read_masked(message, self._plan, where)
        for tensor, total, vector in zip(self._plan.tensors, self._totals, vectors):
            masks.add_into(total, vector, tensor.modulus)

    def _close_masked(self) -> tuple[_State, bytes]:
        after = Type.VOTE if self._plan.checks_survivors else Type.OPENING
        state = dataclasses.replace(self._state, stage=int(after), survivors=self._come())
        return state, self._plan.pack(self._totals)

    def _take_vote(self, message: bytes, sender: bytes, where: str) -> bytes:
        expected = rosters.survivors_digest(self._roster.digest, self._state.survivors)
        if messages.read_vote(message, where).survivors != expected:
            raise ProtocolError(f"{where}: expected the survivors that it was sent", sender)
        return message

    def _close_votes(self) -> tuple[_State, bytes]:
        votes = tuple(self._read[client] for client in self._come())
        return dataclasses.replace(self._state, stage=int(Type.OPENING), votes=votes), self._tail

    def _dealers(self, holder: bytes) -> list[bytes]:
        """Returns whose shares a client holds."""
        return [dealer for dealer in self._roster.holders(holder) if dealer in self._dealt]

    def _take_opening(self, message: bytes, sender: bytes, where: str) -> dict[bytes, bytes]:
        """Returns the shares by dealer, each of which is what the dealer is bound to."""
        dealers = self._dealers(sender)
        shares = dict(zip(dealers, messages.read_opening(message, len(dealers), where)))
        for dealer, share in shares.items():
            bound = self._dealt[dealer].commitments[sender]
            label, commitment = (
                (rosters.OF_SEED, bound.seed)
                if dealer in self._state.survivors
                else (rosters.OF_KEY, bound.key)
            )
            found = rosters.share_commitment(self._roster.digest, dealer, sender, label, share)
            if found != commitment or not shamir.is_share(share):
                raise ProtocolError(
                    f"{where}: expected the share that client {self._identities.name(dealer)} gave "
                    "it, found another",
                    sender,
                )
        return shares

    def _close_openings(self) -> tuple[_State, bytes]:
        """Takes the masks off the total."""
        totals = self._plan.unpack(self._tail)
        if totals is None:
            raise SumError(f"{self._name}: expected sums below their moduli, found a larger one")
        keys = [self._removed(dealer) for dealer in self._dealt]
        # No mask is taken off before every secret has been checked.
        for key, sign in (mask for masks_of_one in keys for mask in masks_of_one):
            self._plan.apply_masks(totals, key, sign)
        over = _State(
            self._state.plan, _RESULT, self._state.cohort, survivors=self._state.survivors
        )
        return over, self._plan.pack(totals)

    def _removed(self, dealer: bytes) -> list[tuple[bytes, int]]:
        """Returns the keys and signs of the masks that a sharer's secret takes off the total."""
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
            if secret is None or rosters.seed_commitment(roster.digest, dealer, secret) != bound:
                raise self._dealt_wrong(dealer, "seed")
            return [(rosters.own_key(secret, roster.digest, dealer), -1)]
        public = roster.keys[dealer].masking
        if secret is None or primitives.exchange_public(secret) != public:
            raise self._dealt_wrong(dealer, "key")
        # The survivors' halves of the masks of pairs with one who is gone are still in the total.
        return [
            (
                rosters.pair_key(secret, roster.keys[other].masking, roster.digest, dealer, other),
                rosters.pair_sign(dealer, other),
            )
            for other in holders
            if other in survivors
        ]

    def _dealt_wrong(self, dealer: bytes, what: str) -> ProtocolError:
        return ProtocolError(
            f"{self._name}: client {self._identities.name(dealer)}: expected shares of the {what} "
            "that it is bound to, found others: its sum cannot be opened, begin another session "
            "without this client",
            dealer,
        )


@dataclasses.dataclass(frozen=True)
class _ReceivedShares:
    """What a sharer has dealt: the commitment to its seed, and of each holder its part."""

    seed: bytes
    commitments: dict[bytes, Commitments]
    sealed: dict[bytes, bytes]


@dataclasses.dataclass(frozen=True)
class _Stage:
    take: Callable[[bytes, bytes, str], Any]
    close: Callable[[], tuple[_State, bytes]]
