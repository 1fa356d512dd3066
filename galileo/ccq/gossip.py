"""Spreads records to every node: announced once, then compared for ever (anti-entropy).

Announcements may be lost. Therefore every node broadcasts a fingerprint of its live records each
`sync_interval_s`. A node that receives a different fingerprint answers with a page of its terms,
and the two exchange the missing records. Nodes that can communicate end up with equal records.
"""

from __future__ import annotations

from galileo.ccq.events import Effects, SaveRecord, Send
from galileo.ccq.messages import (
    Digest,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
)
from galileo.ccq.state import NodeState


class Gossip:
    """Announces and reconciles the records of one node."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._page_after: dict[str, str] = {}
        self._flush_position = 0

    def tick(self) -> Effects:
        """Due each `sync_interval_s`."""
        return [*self._flush(), *self._state.broadcast(self._state.record_table.digest)]

    def on_update(self, sender: str, message: RecordUpdate, now: float) -> Effects:
        """Merge the records; send newer ones back to the sender."""
        effects: Effects = []
        table = self._state.record_table
        for incoming in message.records:
            effects += self._state.apply_record(incoming, now)
            mine = table.get(incoming.ccq.id)
            is_behind = mine is not None and (
                incoming.term < mine.term or (incoming.ended is None and mine.ended is not None)
            )
            if mine is not None and is_behind:
                effects += self._state.announce([mine], to=sender)
        if message.note:
            entries = tuple((record.ccq.id, record.term) for record in message.records)
            effects.append(Send(sender, RecordAck(entries)))
        return effects

    def on_digest(self, sender: str, message: Digest, now: float) -> Effects:
        """Send the next page of terms if the records differ."""
        table = self._state.record_table
        if message == table.digest:
            self._state.agreed[sender] = now
            self._page_after.pop(sender, None)
            return []
        page = table.summary(after=self._page_after.get(sender, ""))
        self._page_after[sender] = page.until or ""
        return [Send(sender, page)]

    def on_summary(self, sender: str, message: Summary) -> Effects:
        difference = self._state.record_table.compare(message)
        effects = self._send_records(sender, difference.newer_here)
        if difference.newer_there:
            effects.append(Send(sender, RecordRequest(difference.newer_there)))
        return effects

    def on_request(self, sender: str, message: RecordRequest) -> Effects:
        records = self._state.record_table.records
        here = tuple(ccq_id for ccq_id in message.ccq_ids if ccq_id in records)
        unknown = tuple(ccq_id for ccq_id in message.ccq_ids if ccq_id not in records)
        effects = self._send_records(sender, here)
        if unknown:
            effects.append(Send(sender, RecordNotFound(unknown)))
        return effects

    def _send_records(self, to: str, ccq_ids: tuple[str, ...]) -> Effects:
        records = [self._state.record_table.records[ccq_id] for ccq_id in ccq_ids]
        return self._state.announce(records, to=to)

    def _flush(self) -> Effects:
        """Save moved retrieved cursors and removed holders; announce those of this node's CCQs.

        Visits no more CCQs than are flushed, and continues there the next time.
        """
        table = self._state.record_table
        ids, flushed_max = list(self._state.coordinated), self._state.options.flushed_max
        start = self._flush_position % len(ids) if ids else 0
        for position, ccq_id in enumerate((*ids[start:], *ids[:start])):
            if len(table.dirty) >= flushed_max:
                self._flush_position = start + position
                break
            coordinator = self._state.coordinated[ccq_id]
            table.acknowledge(ccq_id, coordinator.retrieved)
            table.keep_holders(ccq_id, coordinator.fetches.holders)
        moved = self._state.record_table.pop_dirty(flushed_max)
        mine = [record for record in moved if record.ccq.id in self._state.coordinated]
        saves = [SaveRecord(record, durable=False) for record in moved]
        return [*saves, *self._state.announce(mine)]
