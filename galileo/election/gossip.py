"""Spreads records to the nodes that share them: announced once, then compared for ever.

Announcements may be lost. Therefore each two nodes compare fingerprints of the live records that
they share each `sync_interval_s` (anti-entropy). A node that receives a different fingerprint
answers with a page of its terms, and the two exchange the missing records. Nodes that can
communicate end up with equal records.

A record that this node does not share (`records`) is sent to its replicas until all of them
have acknowledged it, and then forgotten. So a record that moves with the topology is at its new
place before the end of a duty reaches all replicas from a coordinator
that is none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic

from galileo.election.events import Effects, PurgeRecord, SaveRecord, Send
from galileo.election.messages import (
    Digest,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
)
from galileo.election.model import R, Record
from galileo.election.state import DutyState, T


class Gossip(Generic[R, T]):
    """Announces and reconciles the records of one node.

    Args:
        state: of the node.
        is_in_use: whether an election needs the record of a duty.
    """

    def __init__(self, state: DutyState[R, T], *, is_in_use: Callable[[str], bool]) -> None:
        self._state = state
        self._is_in_use = is_in_use
        self._page_after: dict[str, str] = {}
        self._flush_position = 0

    def tick(self, now: float) -> Effects:
        """Due each `sync_interval_s`."""
        return [*self._flush(), *self._push_surplus(now), *self._send_digests()]

    def on_update(self, sender: str, message: RecordUpdate[R], now: float) -> Effects:
        """Merge the records; send newer ones back to the sender.

        A record that this node need not have is ignored, unless the sender asks for a copy.
        """
        effects: Effects = []
        table = self._state.record_table
        for incoming in message.records:
            is_known = table.get(incoming.id) is not None
            if not (is_known or message.note or table.is_shared(incoming)):
                continue
            effects += self._state.learn_record(incoming, now)
            mine = table.get(incoming.id)
            is_behind = mine is not None and (
                incoming.term < mine.term or (incoming.ended is None and mine.ended is not None)
            )
            if mine is not None and is_behind:
                effects += self._state.send_records(sender, [mine])
        if message.note:
            entries = tuple(map(acknowledged_state, message.records))
            effects.append(Send(sender, RecordAck(entries)))
        return effects

    def on_digest(self, sender: str, message: Digest, now: float) -> Effects:
        """Send the next page of terms if the records differ."""
        table = self._state.record_table
        if not message.count:
            self._state.coordinating[sender] = now
        if message == table.digest(sender):
            self._page_after.pop(sender, None)
            return []
        page = table.summary(sender, after=self._page_after.get(sender, ""))
        self._page_after[sender] = page.until or ""
        return [Send(sender, page)]

    def on_summary(self, sender: str, message: Summary) -> Effects:
        difference = self._state.record_table.compare(sender, message)
        effects = self._send_records(sender, difference.newer_here)
        if difference.newer_there:
            effects.append(Send(sender, RecordRequest(difference.newer_there)))
        return effects

    def on_request(self, sender: str, message: RecordRequest) -> Effects:
        records = self._state.record_table.records
        here = tuple(duty_id for duty_id in message.ccq_ids if duty_id in records)
        unknown = tuple(duty_id for duty_id in message.ccq_ids if duty_id not in records)
        effects = self._send_records(sender, here)
        if unknown:
            effects.append(Send(sender, RecordNotFound(unknown)))
        return effects

    def _send_records(self, to: str, ccq_ids: tuple[str, ...]) -> Effects:
        records = [self._state.record_table.records[duty_id] for duty_id in ccq_ids]
        return self._state.send_records(to, records)

    def on_record_ack(self, sender: str, message: RecordAck) -> Effects:
        """Note which surplus records a replica has."""
        table = self._state.record_table
        for duty_id, term in message.entries:
            surplus = table.surplus.get(duty_id)
            if surplus and (duty_id, term) == acknowledged_state(table.records[duty_id]):
                surplus.acknowledged_by.add(sender)
        return []

    def _push_surplus(self, now: float) -> Effects:
        """Send surplus records to the replicas that have not acknowledged them, and forget those
        that all replicas have. Those that wait longest come first.
        """
        table = self._state.record_table
        ids = list(islice(table.surplus, self._state.options.flushed_max))
        effects: Effects = []
        left: list[tuple[R, Iterable[str]]] = []
        for duty_id in ids:
            surplus = table.surplus[duty_id] = table.surplus.pop(duty_id)
            since = surplus.since = now if surplus.since is None else surplus.since
            has_it, replicas = surplus.acknowledged_by, table.replicas(duty_id)
            is_old = now >= since + self._state.options.surplus_s
            if is_old and has_it.issuperset(replicas) and not self._is_in_use(duty_id):
                table.forget(duty_id)
                effects.append(PurgeRecord(duty_id))
                continue
            live = self._state.live_replicas(duty_id)
            left.append((table.records[duty_id], [node for node in live if node not in has_it]))
        return [*effects, *self._state.distribute(left, note=True)]

    def _send_digests(self) -> Effects:
        """Send digests to the nodes that share records with this one.

        A node that coordinates sends one to each other node, which then sends it commits early.
        """
        table, is_coordinator = self._state.record_table, bool(self._state.coordinated)
        digests = [(peer, table.digest(peer)) for peer in self._state.peers]
        return [Send(peer, digest) for peer, digest in digests if digest.count or is_coordinator]

    def _flush(self) -> Effects:
        """Save records with progress; announce those of this node's duties.

        Visits no more duties than are flushed, and continues there the next time.
        """
        table = self._state.record_table
        ids, flushed_max = list(self._state.coordinated), self._state.options.flushed_max
        start = self._flush_position % len(ids) if ids else 0
        for position, duty_id in enumerate((*ids[start:], *ids[:start])):
            if len(table.dirty) >= flushed_max:
                self._flush_position = start + position
                break
            self._state.save_progress(duty_id)
        moved = table.pop_dirty(flushed_max)
        mine = [record for record in moved if record.id in self._state.coordinated]
        saves = [SaveRecord(record, durable=False) for record in moved]
        return [*saves, *self._state.announce(mine)]


def acknowledged_state(record: Record) -> tuple[str, int]:
    """The entry of a record in RecordAck."""
    return record.id, -record.term if record.ended is not None else record.term
