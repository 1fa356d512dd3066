"""The records of continuous queries at a node: rows of a system table (`galileo.ccq.records`).

A node follows the records that name it, and feeds them to its machine. What it does not know, it
asks the leader of the system partition; what it has heard lately of a query that other nodes run
serves as a hint, which the coordinator itself confirms. Without a leader, what any other node knows
is such a hint.

The leader looks at all records from time to time: queries whose nodes are all dead get other ones,
and ends are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from galileo.ccq import events as ccq
from galileo.ccq.model import HOLD_PARTS, Record, unknown_failure
from galileo.ccq.placement import (
    CcqChange,
    EndCcq,
    ForgetCcq,
    Lost,
    PlaceCcq,
    due_change,
    excess_ends,
    move,
    moved_to,
)
from galileo.ccq.records import CCQ_ROWS, NODES_MAX, NOTHING, encode, topic_of
from galileo.clock import Clock
from galileo.election.election import Candidacy
from galileo.errors import GalileoError, Unavailable
from galileo.model.times import MICROS
from galileo.node.loop_calls import call_in_loop
from galileo.node.retention_plan import Hold
from galileo.node.storage_node import StorageNode
from galileo.node.system_tables import SystemTable
from galileo.rpc.access import Principal
from galileo.rpc.continuous import CcqDescription
from galileo.rpc.peers import GrpcPeers
from galileo.server.elections import Elections

HINTS_MAX = 10_000
HOLDS_TIMEOUT_S = 60.0
SWEEP_S = 5.0
SWEPT_MAX = 1_024
"""Changes of one sweep; the next one makes others."""
TELL_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class CcqRecords:
    """Reads and changes the records of continuous queries for one node.

    Args:
        node: this node.
        peers: the other nodes.
        elections: of this node.
        feed: has the machine process an event.
        known: the records that the machine has.
        is_gone: whether a node is dead, or not of the cluster.
        clock: wall clock.

    Attributes:
        table: the system table.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        elections: Elections,
        feed: Callable[[ccq.ContinuousEvent], None],
        known: Callable[[], Mapping[str, Record]],
        is_gone: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._node = node
        self._peers = peers
        self._elections = elections
        self._feed = feed
        self._known = known
        self._is_gone = is_gone
        self._clock = clock
        self._hints: OrderedDict[str, Record] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.table = SystemTable(
            CCQ_ROWS,
            node.system_partition,
            learn=self._learn,
            known=known,
            listed=self._check_losses,
            topic=topic_of(node=node.name),
        )
        node.add_system_table(self.table)

    def start(self) -> None:
        """Notes the running event loop, for `holds_from_thread`."""
        self._loop = asyncio.get_running_loop()

    # --- what there is -------------------------------------------------------------------------

    async def find(self, ccq_id: str) -> Record:
        """The record of a CCQ, perhaps not the newest.

        Raises:
            UnknownCcq: there is none.
            TransientError: no node that may know it is reachable.
        """
        record = self._known().get(ccq_id) or self._hints.get(ccq_id)
        return record or await self.look_up(ccq_id)

    async def look_up(self, ccq_id: str) -> Record:
        """The record as the leader knows it; without a leader, as any other node does.

        Raises:
            UnknownCcq, TransientError: as `find`.
        """
        if not self._has_leader and (record := await self._ask_others(ccq_id)) != NOTHING:
            self._keep_hint(record)  # The machine learns only what the leader says.
            return record
        record = await self.table.look_up(ccq_id)
        if record == NOTHING:
            self._hints.pop(ccq_id, None)
            raise unknown_failure(ccq_id).to_error()
        await self._learn({ccq_id: record})
        return record

    @property
    def _has_leader(self) -> bool:
        try:
            return not self._is_gone(self._node.system_partition.leader)
        except Unavailable:
            return False

    def forget_hint(self, ccq_id: str) -> None:
        """Has the next `find` of a CCQ that this node does not run ask the leader."""
        self._hints.pop(ccq_id, None)

    async def _ask_others(self, ccq_id: str) -> Record:
        """What the other nodes that live know of a CCQ."""
        others = [one for one in self._node.system_partition.others if not self._is_gone(one)]
        asked = (self._peers.known_row(one, CCQ_ROWS.table.key, ccq_id) for one in others)
        record = NOTHING
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if not isinstance(answer, BaseException):
                record = CCQ_ROWS.merged(record, CCQ_ROWS.value(answer.data))
            elif not isinstance(answer, GalileoError):
                raise answer
        return record

    async def all(self, dataset: str = "") -> list[CcqDescription]:
        """The CCQs that live, by id; dataset empty: of all.

        Raises:
            TransientError: there is no leader.
        """
        return [self.describe(one) for one in await self._living(topic_of(dataset=dataset))]

    async def count(self, dataset: str) -> int:
        """The number of running CCQs of a dataset; errors as `all`."""
        return len(await self._living(topic_of(dataset=dataset)))

    async def samplers_in_use(self, caller: Principal) -> dict[str, list[str]]:
        """The CCQs of a caller that use each uploaded sampler, by its digest; errors as `all`."""
        ccqs_of: dict[str, list[str]] = {}
        for asked in [record.ccq for record in await self._living("")]:
            is_shown = caller.owns(asked.owner) and caller.may_use(asked.dataset)
            if is_shown and asked.sampler is not None and asked.sampler.archive:
                ccqs_of.setdefault(asked.sampler.archive, []).append(asked.id)
        return ccqs_of

    async def _living(self, topic: str) -> list[Record]:
        """The records of a topic that have not ended, by id; those of dropped datasets have."""
        is_dropped = self._node.catalog.is_dropped
        found = (await self.table.read(topic)).values()
        living = [one for one in found if one.ended is None and not is_dropped(one.ccq.dataset)]
        return sorted(living, key=lambda one: one.id)

    async def total(self) -> int:
        """Number of CCQs that live; without a leader, of those that this node knows."""
        try:
            return len(await self._living(""))
        except GalileoError:
            return sum(record.ended is None for record in self._known().values())

    async def owned_by(self, owner: str) -> int:
        """Number of CCQs of an owner that live; errors as `all`."""
        living = await self._living(topic_of(owner=owner))
        return sum(record.ccq.owner == owner for record in living)

    def describe(self, record: Record) -> CcqDescription:
        coordinator = record.acting(self._is_gone) or record.coordinator
        return CcqDescription(record, coordinator, self.address(coordinator))

    def address(self, node: str) -> str:
        """Empty if this node does not know it yet."""
        try:
            return self._peers.address(node)
        except Unavailable:
            return ""

    async def holds(self, dataset: str) -> list[Hold] | None:
        """What the readers of the queries of a dataset hold; None if the leader does not answer."""
        try:
            living = await self._living(topic_of(dataset=dataset))
        except GalileoError as error:
            log.info("the continuous queries of %s cannot be read: %s", dataset, error)
            return None
        return [_hold(one) for one in living]

    def holds_from_thread(self, dataset: str) -> list[Hold] | None:
        """`holds`, called from another thread than that of the event loop."""
        if self._loop is None:
            return None
        call = partial(self.holds, dataset)
        return call_in_loop(self._loop, call, timeout_s=HOLDS_TIMEOUT_S, otherwise=None)

    # --- changes -------------------------------------------------------------------------------

    async def place(
        self,
        candidacies: Sequence[Candidacy],
        records: Sequence[Record],
        *,
        bounds: Sequence[tuple[int, int]],
    ) -> list[Record | GalileoError]:
        """Elects the nodes of CCQs and adds their records, or finds them added already.

        Args:
            candidacies: of the CCQs.
            records: without nodes.
            bounds: how many CCQs may live in the cluster, and of the owner.

        Raises:
            Unavailable: there is no leader, or no node that takes them.
        """
        elected = await self._elections.elect(candidacies)
        changes, outcomes = dict[int, CcqChange](), list[Record | GalileoError]()
        for number, (record, (total, owned)) in enumerate(zip(records, bounds, strict=True)):
            nodes = elected[record.id]
            outcomes.append(_no_taker(record.id))
            if nodes:
                placed = moved_to(record, nodes)
                changes[number] = PlaceCcq(record.id, encode(placed), total, owned)
        made = await self.table.change_all([*changes.values()]) if changes else []
        for number, outcome in zip(changes, made, strict=True):
            outcomes[number] = outcome
        await self._learn({one.id: one for one in outcomes if isinstance(one, Record)})
        return outcomes

    async def end(self, ccq_id: str, ending: str) -> None:
        """Ends a CCQ, and tells the nodes that may run it; repeating it has no effect.

        Raises:
            UnknownCcq: there is none.
            Unavailable: there is no leader.
        """
        [outcome] = await self.table.change_all([EndCcq(ccq_id, ending, self._clock.wall())])
        if isinstance(outcome, GalileoError):
            raise outcome
        await self._learn({ccq_id: outcome})
        row = CCQ_ROWS.row(ccq_id, outcome)
        others = [one for one in outcome.nodes if one != self._node.name and not self._is_gone(one)]
        calls = [self._peers.learn_row(one, CCQ_ROWS.table.key, row) for one in others]
        telling = asyncio.gather(*calls, return_exceptions=True)
        try:
            await asyncio.wait_for(telling, TELL_TIMEOUT_S)
        except TimeoutError:
            log.info("some of %s will learn later that %s has ended", others, ccq_id)

    async def carry_out(self, effect: ccq.ChangeRecords) -> ccq.RecordsChanged:
        """Has the leader make the changes of the machine."""
        names = tuple(change.name for change in effect.changes)
        try:
            outcomes = await self.table.change_all(effect.changes)
        except GalileoError as error:
            log.info("%d records of continuous queries wait to be saved: %s", len(names), error)
            return ccq.RecordsChanged(names)
        known = dict(zip(names, outcomes, strict=True))
        failed = {name: one for name, one in known.items() if isinstance(one, GalileoError)}
        unknown = [name for name, one in failed.items() if one.kind == "unknown_ccq"]
        unknown += [name for name, one in known.items() if one == NOTHING]
        for name in failed.keys() - {*unknown}:
            log.warning("the record of %s cannot be changed: %s", name, failed[name])
        records = tuple(one for one in outcomes if isinstance(one, Record) and one != NOTHING)
        return ccq.RecordsChanged(names, records, tuple(unknown))

    async def elect(self, effect: ccq.ElectNodes) -> ccq.NodesElected:
        """Elects nodes for the machine."""
        return ccq.NodesElected(await self._elections.elect(effect.candidacies))

    async def _learn(self, values: Mapping[str, Record]) -> None:
        records = [one for one in values.values() if one != NOTHING]
        name, known = self._node.name, self._known()
        mine = tuple(one for one in records if name in one.participants or one.id in known)
        if mine:
            self._feed(ccq.RecordsLearned(mine))
        for record in records:
            if name not in record.participants:
                self._keep_hint(record)

    def _keep_hint(self, record: Record) -> None:
        self._hints[record.id] = record
        self._hints.move_to_end(record.id)
        while len(self._hints) > HINTS_MAX:
            self._hints.popitem(last=False)

    # --- the leader ----------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Looks at all records from time to time while this node leads, until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                while await self._sweep():
                    pass
            except GalileoError as error:
                log.debug("the records of continuous queries are not looked at: %s", error)

    async def _sweep(self) -> bool:
        """Makes some of the changes that are due; whether there are others."""
        if not self._node.replicas.holds_lease(self._node.system_partition.number):
            return False
        wall, ends = self._clock.wall(), list[tuple[float, str]]()

        def pick(record: Record) -> CcqChange | Lost | None:
            if record.ended is not None:
                ends.append((record.ended_at, record.id))
            return due_change(record, is_gone=self._is_gone, wall=wall)

        found: Mapping[str, CcqChange | Lost] = await self.table.select(pick)
        due = [*found.values(), *map(ForgetCcq, excess_ends(ends, wall=wall))][:SWEPT_MAX]
        changes = [one for one in due if not isinstance(one, Lost)]
        lost = [one.record for one in due if isinstance(one, Lost)]
        if lost:
            elected = await self._elections.elect(
                Candidacy(one.id, NODES_MAX, excluded=one.nodes) for one in lost
            )
            changes += [move(moved_to(one, elected[one.id])) for one in lost if elected[one.id]]
        if changes:
            await self.table.change_all(changes)
        return len(changes) == SWEPT_MAX

    # --- losses --------------------------------------------------------------------------------

    def _check_losses(self, values: Mapping[str, Record]) -> None:
        """Reports commits that readers have retrieved and that are lost here."""
        losses, shards = self._node.view.losses, self._node.catalog.shards
        for record in values.values():
            if record.ended is None and record.ccq.dataset in shards:
                losses.expect(record.ccq.dataset, record.retrieved)
        sequences = {dataset: shard.own_published().sequences for dataset, shard in shards.items()}
        losses.check_own(self._node.name, self._node.partitions, reported=sequences)


def _hold(record: Record) -> Hold:
    """What the readers of a query hold: at least for its hold after the last fetch."""
    ccq = record.ccq
    noted_s = ccq.hold_s / HOLD_PARTS  # So much later a fetch may be noted.
    stored_us = round(record.fetched_at * MICROS)
    return Hold(ccq.id, record.retrieved, ccq.hold_s + noted_s, stored_us)


def _no_taker(ccq_id: str) -> Unavailable:
    return Unavailable(
        "no node takes the continuous query: none that lives has answered in time, or all drain; "
        "try again",
        after_s=0.5,
        ccq_id=ccq_id,
    )
