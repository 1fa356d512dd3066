"""How records reach every node: announced once, compared for ever (anti-entropy).

Announcements may be lost. Therefore every node sends everybody a fingerprint of its live
records each `sync_interval_s`; one that hears a different fingerprint answers with a page of its
terms, and the two exchange what the other lacks. Nodes that can talk end up with equal records.
"""

from __future__ import annotations

from galileo.ccq.events import SaveRecord, Send
from galileo.ccq.messages import (
    Digest,
    RecordAck,
    RecordNotFound,
    RecordRequest,
    RecordUpdate,
    Summary,
)
from galileo.ccq.state import Effects, NodeState

FLUSHED_MAX = 1_024
"""Retrieved cursors that are saved and announced at a time; others wait for their turn. A late one
makes a successor evaluate more, and retention wait."""


class Gossip:
    """See the module."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._page_after: dict[str, str] = {}
        self._looked_at = 0

    def tick(self) -> Effects:
        """Due each `sync_interval_s`."""
        return [*self._flush(), *self._state.tell(self._state.record_table.digest)]

    def on_announce(self, sender: str, message: RecordUpdate, now: float) -> Effects:
        """Merges the records; a sender with older records gets the newer ones."""
        effects: Effects = []
        tracker = self._state.record_table
        for incoming in message.records:
            effects += self._state.learn(incoming, now)
            mine = tracker.get(incoming.ccq.id)
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
        """Sends the next page of terms where the records differ."""
        tracker = self._state.record_table
        if message == tracker.digest:
            self._state.agreed[sender] = now
            self._page_after.pop(sender, None)
            return []
        page = tracker.summary(after=self._page_after.get(sender, ""))
        self._page_after[sender] = page.until or ""
        return [Send(sender, page)]

    def on_summary(self, sender: str, message: Summary) -> Effects:
        difference = self._state.record_table.compare(message)
        effects = self._announce(sender, difference.newer_here)
        if difference.newer_there:
            effects.append(Send(sender, RecordRequest(difference.newer_there)))
        return effects

    def on_wanted(self, sender: str, message: RecordRequest) -> Effects:
        records = self._state.record_table.records
        here = tuple(ccq_id for ccq_id in message.ccq_ids if ccq_id in records)
        lacking = tuple(ccq_id for ccq_id in message.ccq_ids if ccq_id not in records)
        effects = self._announce(sender, here)
        if lacking:
            effects.append(Send(sender, RecordNotFound(lacking)))
        return effects

    def _announce(self, to: str, ccq_ids: tuple[str, ...]) -> Effects:
        records = [self._state.record_table.records[ccq_id] for ccq_id in ccq_ids]
        return self._state.announce(records, to=to)

    def _flush(self) -> Effects:
        """Saves retrieved cursors that moved and holders that were given up, and announces those
        of this node's CCQs.

        Looks at no more than are flushed, and goes on there the next time.
        """
        tracker = self._state.record_table
        ids = list(self._state.coordinated)
        start = self._looked_at % len(ids) if ids else 0
        for looked, ccq_id in enumerate((*ids[start:], *ids[:start])):
            if len(tracker.dirty) >= FLUSHED_MAX:
                self._looked_at = start + looked
                break
            led = self._state.coordinated[ccq_id]
            tracker.acknowledge(ccq_id, led.retrieved)
            tracker.keep_holders(ccq_id, led.fetches.holders)
        moved = self._state.record_table.pop_dirty(FLUSHED_MAX)
        mine = [record for record in moved if record.ccq.id in self._state.coordinated]
        saves = [SaveRecord(record, durable=False) for record in moved]
        return [*saves, *self._state.announce(mine)]
