"""Client of secure aggregation, which answers the server's request in each stage once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fleet.secure_aggregation import messages, primitives, shamir
from fleet.secure_aggregation.errors import ProtocolError
from fleet.secure_aggregation.messages import (
    TWO_SHARES_BYTES,
    Commitments,
    Delivery,
    Type,
    read_header,
)
from fleet.secure_aggregation.roster import Roster, pair_sign
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.shamir import SHARE_BYTES
from fleet.secure_aggregation.sum_plan import Identities, SumPlan

_SERVER = "message of the server"
Values = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _State:
    """A client's state in a session; fields that are not needed any more are empty.

    Attributes:
        answered: Type of the last answer; 0 for an abandoned session.
        request: SHA-256 of the last request.
        sealing: Secret key for the encryption of shares.
        masking: Secret key from which pairwise masks derive.
        seed: Seed of the client's own mask.
        roster: KEYS messages of all members.
        own_shares: The client's two shares of its own secrets.
        dealers: Clients whose shares this client holds, including itself.
        shares: The two shares of each dealer, in the order of `dealers`.
        sharers: All clients that sent shares.
        survivors: Clients whose values are summed.
    """

    identity: bytes
    plan: bytes
    answered: int
    request: bytes
    sealing: bytes = b""
    masking: bytes = b""
    seed: bytes = b""
    roster: tuple[bytes, ...] = ()
    own_shares: bytes = b""
    dealers: tuple[bytes, ...] = ()
    shares: tuple[bytes, ...] = ()
    sharers: tuple[bytes, ...] = ()
    survivors: tuple[bytes, ...] = ()


class Client:
    """One client of a fleet.

    A client keeps no state in memory: `answer` reads a session's file, and updates it before it
    returns. So another process can continue a session at any time. A repeated last request gets the
    same bytes, even if the client's values differ. Any other message for a completed stage raises
    ProtocolError.

    Args:
        plan: Settings of the sum, from the client's own copy of the plan.
        identity: Ed25519 secret key of the client, 32 bytes.
        identities: All clients of the fleet, including this one.
        folder: Folder of this client's sessions, which no other client uses.
    """

    def __init__(
        self, plan: SumPlan, identity: bytes, identities: Identities, folder: SessionFolder
    ) -> None:
        self._plan = plan
        self._secret = identity
        self._own = primitives.identity_public(identity)
        self._identities = identities
        self._folder = folder
        if self._own not in identities:
            raise ProtocolError(
                "identities: expected the client's own key among them, found none "
                f"{identities.name(self._own)}"
            )
        # For each type of request: the type that the last answer must have, the function that
        # computes the new answer, and the type of the new answer.
        self._stages: dict[Type, tuple[Type, _Stage, Type]] = {
            Type.ROSTER: (Type.KEYS, self._share, Type.SHARES),
            Type.DELIVERY: (Type.SHARES, self._mask, Type.MASKED),
            Type.SURVIVORS: (Type.MASKED, self._agree, Type.VOTE),
            Type.VOTES: (Type.VOTE, self._open, Type.OPENING),
        }

    def answer(self, message: bytes, values: Callable[[], Values] | None = None) -> bytes:
        """Returns the answer to a message of the server.

        Args:
            values: Returns the client's integers, keyed by tensor name; called only for DELIVERY.
        """
        kind, session = read_header(message, self._plan, _SERVER)
        request = _Request(kind, session, message, values)
        with self._folder.locked():
            stored = self._folder.read(session)
            if stored is None:
                state, answer = self._advertise(request)
            else:
                state = self._own_state(stored[0], request)
                if state.answered and state.request == request.digest:
                    return stored[1]
                state, answer = self._next(request, state)
            self._folder.write(session, vars(state), answer)
            return answer

    def give_up(self, session: bytes) -> None:
        """Abandons a session: erases its secrets, and answers none of its further requests."""
        with self._folder.locked():
            stored = self._folder.read(session)
            if stored is not None:
                state = _State(**stored[0])
                over = _State(state.identity, state.plan, 0, state.request)
                self._folder.write(session, vars(over), b"")

    def unfinished(self) -> list[bytes]:
        """Returns the ids of the sessions that still have secrets."""
        with self._folder.locked():
            states = {name: self._folder.read(name) for name in self._folder.sessions()}
        over = (0, int(Type.OPENING))
        return [name for name, kept in states.items() if kept and kept[0]["answered"] not in over]

    def _own_state(self, fields: dict[str, Any], request: _Request) -> _State:
        state = _State(**fields)
        if state.identity != self._own:
            raise request.refused("expected sessions of this client, found one of another client")
        if state.plan != self._plan.digest():
            raise request.refused("expected the plan that it began with, found a different plan")
        return state

    def _next(self, request: _Request, state: _State) -> tuple[_State, bytes]:
        kind = request.kind
        if kind not in self._stages:
            what = "a new session" if kind == Type.BEGIN else "a message of this protocol"
            raise request.refused(f"expected {what}, found {kind.name} of a session that has begun")
        before, stage, after = self._stages[kind]
        if state.answered != before:
            done = Type(state.answered).name if state.answered else "given up"
            raise request.refused(
                f"expected {kind.name} after {before.name}, this session is at {done}"
            )
        state, body = stage(request, state)
        state = dataclasses.replace(state, answered=int(after), request=request.digest)
        return state, self._signed(after, request.session, body)

    def _signed(self, kind: Type, session: bytes, body: bytes) -> bytes:
        return messages.signed(kind, session, self._secret, self._own, body)

    def _advertise(self, request: _Request) -> tuple[_State, bytes]:
        """Stage 0: creates keys for this session."""
        if request.kind != Type.BEGIN:
            raise request.refused(f"expected a session that has begun, found {request.kind.name}")
        plan = self._plan.digest()
        asked = messages.read_begin(request.message, _SERVER)
        if asked != plan:
            raise request.refused(
                f"expected the plan {plan.hex()[:16]}, the server has {asked.hex()[:16]}: plan, "
                "limits or moduli differ"
            )
        sealing = primitives.random_bytes(primitives.KEY_BYTES)
        masking = primitives.random_bytes(primitives.KEY_BYTES)
        state = _State(
            self._own, plan, int(Type.KEYS), request.digest, sealing=sealing, masking=masking
        )
        public = (primitives.exchange_public(sealing), primitives.exchange_public(masking))
        body = messages.keys_body(plan, *public)
        return state, self._signed(Type.KEYS, request.session, body)

    def _share(self, request: _Request, state: _State) -> tuple[_State, bytes]:
        """Stage 1: splits the masking key and the seed into shares for the holders."""
        keys = messages.read_roster(
            request.message, request.session, self._plan, self._identities, _SERVER
        )
        roster = Roster(request.session, keys)
        keys_here = roster.keys.get(self._own)
        mine = tuple(map(primitives.exchange_public, (state.sealing, state.masking)))
        if keys_here is None or (keys_here.sealing, keys_here.masking) != mine:
            raise request.refused("expected this client's keys in the roster, found none")
        seed = primitives.random_bytes(shamir.SECRET_BYTES)
        holders = roster.holders(self._own)
        points = [roster.point(holder) for holder in holders]
        threshold = self._plan.threshold(len(holders))
        key_shares = shamir.split(state.masking, threshold, points)
        seed_shares = shamir.split(seed, threshold, points)
        commitments, sealed, own_shares = [], [], b""
        for holder, point in zip(holders, points):
            shares = key_shares[point] + seed_shares[point]
            bound = roster.share_commitments(self._own, holder, shares)
            commitments.append(bound)
            if holder == self._own:
                own_shares = shares
            else:
                key, context = self._sealing(roster, state, self._own, holder, bound)
                sealed.append(primitives.seal(key, shares, context))
        body = messages.shares_body(roster.seed_commitment(self._own, seed), commitments, sealed)
        members = tuple(k.message for k in keys)
        return dataclasses.replace(state, roster=members, seed=seed, own_shares=own_shares), body

    def _sealing(
        self, roster: Roster, state: _State, dealer: bytes, holder: bytes, bound: Commitments
    ) -> tuple[bytes, bytes]:
        """Returns the key and context with which a dealer encrypts shares for a holder.

        The key derives from the complete roster, so a client with a different roster cannot decrypt
        the shares.
        """
        other = roster.keys[holder if dealer == self._own else dealer]
        with self._no_weak_key(other.sender):
            agreed = primitives.agree(state.sealing, other.sealing)
        info = b"shares" + dealer + holder
        return primitives.derive_key(agreed, roster.digest, info), bound.key + bound.seed

    def _mask(self, request: _Request, state: _State) -> tuple[_State, bytes]:
        """Stage 2: adds the client's own mask and its pairwise masks to its values."""
        roster = self._roster(request.session, state)
        delivery = messages.read_delivery(request.message, self._plan, _SERVER)
        self._check_remaining(delivery.sharers, roster.keys, "who sent shares", request, roster)
        holders = roster.holders(self._own)
        dealers = tuple(client for client in delivery.sharers if client in holders)
        threshold = self._plan.threshold(len(holders))
        if len(dealers) < threshold or len(delivery.parcels) != len(dealers) - 1:
            raise request.refused(
                f"expected shares of at least {threshold} of its {len(holders)} holders, found "
                f"{len(dealers)} clients and {len(delivery.parcels) + 1} shares"
            )
        shares = self._unsealed(roster, state, dealers, delivery)
        if request.values is None:
            raise ValueError("expected the client's values with DELIVERY")
        totals = self._plan.check_values(request.values(), "values of this client")
        self._plan.apply_masks(totals, roster.own_key(state.seed, self._own), 1)
        for other in dealers:
            if other != self._own:
                with self._no_weak_key(other):
                    key = roster.pair_key(state.masking, self._own, other)
                self._plan.apply_masks(totals, key, pair_sign(self._own, other))
        # Erase the secrets: they are not needed any more, or the holders have received shares of
        # them.
        state = dataclasses.replace(
            state,
            sealing=b"",
            masking=b"",
            seed=b"",
            own_shares=b"",
            dealers=dealers,
            shares=shares,
            sharers=delivery.sharers,
        )
        return state, self._plan.pack(totals)

    def _unsealed(
        self, roster: Roster, state: _State, dealers: tuple[bytes, ...], delivery: Delivery
    ) -> tuple[bytes, ...]:
        """Decrypts each dealer's two shares, and checks them against the dealer's commitments."""
        parcels = iter(delivery.parcels)
        unsealed = []
        for dealer in dealers:
            if dealer == self._own:
                unsealed.append(state.own_shares)
                continue
            bound, sealed = next(parcels)
            key, context = self._sealing(roster, state, dealer, self._own, bound)
            shares = primitives.unseal(key, sealed, context)
            if shares is None or len(shares) != TWO_SHARES_BYTES:
                raise self._at_fault(
                    dealer,
                    "expected shares for this client and this roster, found different ones: the "
                    "dealer or the server violates the protocol",
                )
            halves = (shares[:SHARE_BYTES], shares[SHARE_BYTES:])
            if (
                not all(map(shamir.is_share, halves))
                or roster.share_commitments(dealer, self._own, shares) != bound
            ):
                raise self._at_fault(
                    dealer, "expected shares that match its commitments, found different ones"
                )
            unsealed.append(shares)
        return tuple(unsealed)

    def _agree(self, request: _Request, state: _State) -> tuple[_State, bytes]:
        """Stage 3: signs the list of clients whose values are summed."""
        roster = self._roster(request.session, state)
        survivors = messages.read_survivors(request.message, self._plan, _SERVER)
        self._check_remaining(survivors, state.sharers, "whose values arrived", request, roster)
        state = dataclasses.replace(state, survivors=survivors)
        return state, roster.survivors_digest(survivors)

    def _open(self, request: _Request, state: _State) -> tuple[_State, bytes]:
        """Stage 4: reveals shares once enough clients have signed the same list."""
        roster = self._roster(request.session, state)
        votes = messages.read_votes(
            request.message, request.session, self._plan, self._identities, _SERVER
        )
        expected = roster.survivors_digest(state.survivors)
        for sender, survivors in votes.items():
            name = self._identities.name(sender)
            if sender not in state.survivors:
                raise request.refused(
                    f"expected signatures of survivors, found one of client {name}"
                )
            if survivors != expected:
                raise request.refused(
                    f"expected signatures of the same roster and survivors, client {name} signed "
                    "others: the server has shown clients different lists"
                )
        threshold = self._plan.threshold(len(roster.keys))
        if len(votes) < threshold:
            raise request.refused(f"expected {threshold} signatures at least, found {len(votes)}")
        # Reveal the seed shares of survivors and the key shares of other dealers, but never both
        # shares of one dealer.
        opened = [
            shares[SHARE_BYTES:] if dealer in state.survivors else shares[:SHARE_BYTES]
            for dealer, shares in zip(state.dealers, state.shares)
        ]
        over = _State(state.identity, state.plan, state.answered, state.request)
        return over, messages.listed(opened)

    def _roster(self, session: bytes, state: _State) -> Roster:
        return Roster(session, tuple(messages.read_keys(m, "roster") for m in state.roster))

    def _check_remaining(
        self, clients: tuple[bytes, ...], among: Any, what: str, request: _Request, roster: Roster
    ) -> None:
        """Checks that enough clients remain, all of them known, and this client among them."""
        minimum = max(self._plan.min_clients, self._plan.threshold(len(roster.keys)))
        if len(clients) < minimum:
            raise request.refused(
                f"expected at least {minimum} of {len(roster.keys)} clients in the list of clients "
                f"{what}, found {len(clients)}"
            )
        allowed = set(among)
        for client in clients:
            if client not in allowed:
                raise request.refused(
                    f"expected clients of the previous list, found {self._identities.name(client)} "
                    f"in the list of clients {what}"
                )
        if self._own not in clients:
            raise request.refused(
                f"expected this client in the list of clients {what}, found it missing"
            )

    @contextlib.contextmanager
    def _no_weak_key(self, client: bytes) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise self._at_fault(client, "expected a key of X25519, found a weak one") from None

    def _at_fault(self, client: bytes, text: str) -> ProtocolError:
        return ProtocolError(f"client {self._identities.name(client)}: {text}", client)


@dataclasses.dataclass(frozen=True)
class _Request:
    kind: Type
    session: bytes
    message: bytes
    values: Callable[[], Values] | None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.message).digest()

    def refused(self, text: str) -> ProtocolError:
        return ProtocolError(f"session {self.session.hex()[:16]}: {text}")


_Stage = Callable[[_Request, _State], tuple[_State, bytes]]
