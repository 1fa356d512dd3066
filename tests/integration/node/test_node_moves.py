"""Partitions that move between real nodes in this process; each call may fail."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from partition_moves import (
    DEADLINE_S,
    FROM,
    TO,
    Line,
    check_whole,
    identities,
    owners_of,
    partition_of,
    take,
    tell_all,
)

from galileo.clock import SystemClock
from galileo.dht import placement, topology_changes
from galileo.dht.register import Ballot, Entry
from galileo.dht.topology import Move
from galileo.errors import CorruptData, GalileoError, InputError, PartitionMoved, Unavailable
from galileo.node.migration.protocol import Handoff, MigrationOptions
from galileo.server.register_driver import STATE
from galileo.server.topology_register import TopologyRegister


async def test_move_partition_keeps_commits_and_recognises_repeated_batches(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, before = partition_of(cluster), identities(await cluster.ask())
    last = int(cluster[FROM].catalog.shard("nam").own[partition].last_sequence)
    await take(cluster, partition)
    assert partition in cluster[TO].partitions
    assert partition not in cluster[FROM].partitions
    await tell_all(cluster)
    assert owners_of(cluster, partition) == [TO]
    assert identities(await cluster.ask()) == before
    again = await cluster.ingest(sent[0], batch=0)
    assert again.duplicate_rows == 200, "batches are recognised where their partition is now"
    more = make_observations(200, 2)
    reached = (await cluster.ingest(more, batch=2)).reached
    assert reached[partition] == last + 1, "sequences go on"
    await check_whole(cluster, [*sent, more])
    await cluster.restart(FROM)
    await cluster.restart(TO)
    assert owners_of(cluster, partition) == [TO]
    await check_whole(cluster, [*sent, more])


async def test_move_old_files_are_deleted_after_the_new_owner_confirms(
    loaded: tuple[Any, list[pa.Table]],
) -> None:
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(grace_s=0.0))
    partition = partition_of(cluster)
    place = cluster[FROM].store.partition_directory("nam", partition)
    await take(cluster, partition)
    cluster[FROM].moves.receive("b", cluster[TO].moves.known)
    await cluster[FROM].moves.settled()
    assert place.exists(), "the word of a third node is not enough"
    await tell_all(cluster)
    assert not place.exists()
    assert partition not in cluster[FROM].catalog.shard("nam").journals
    await check_whole(cluster, sent)
    await cluster.restart(FROM)
    await check_whole(cluster, sent)


async def test_move_there_and_back_keeps_all_commits(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    """With commits that its first node has not seen, and its old files still there or not."""
    cluster, sent = loaded
    partition = partition_of(cluster)
    for number, to in enumerate((TO, FROM, TO, FROM), start=2):
        await take(cluster, partition, to=to)
        await tell_all(cluster)
        assert owners_of(cluster, partition) == [to]
        sent.append(make_observations(100, number))
        await cluster.ingest(sent[-1], batch=number)
        await check_whole(cluster, sent)


async def test_move_fenced_partition_refuses_commits_until_the_fence_expires(
    loaded: tuple[Any, list[pa.Table]],
    make_observations: Callable[..., pa.Table],
) -> None:
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(fence_s=60.0))
    partition = partition_of(cluster)
    await cluster[FROM].giving.fence(partition, to=TO)
    with raises(Unavailable, node=TO):
        await cluster[FROM].giving.fence(partition, to="b")
    more = make_observations(200, 2)
    with pytest.raises(PartitionMoved):
        await cluster.ingest(more, batch=2)
    assert len(await cluster.ask()) > 0
    await cluster.reconfigure(migration=MigrationOptions(fence_s=0.2))
    await cluster[FROM].giving.fence(partition, to=TO)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionMoved):
                await cluster.ingest(more, batch=2)
                break
            await asyncio.sleep(0.02)
    await check_whole(cluster, [*sent, more])


async def test_move_cancelled_while_opening_closes_the_copy(
    loaded: tuple[Any, list[pa.Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next attempt would take a closed journal for its copy."""
    cluster, _ = loaded
    partition, node = partition_of(cluster), cluster[TO]
    opening, gate = threading.Event(), threading.Event()
    open_partition = node.store.open_partition

    def opened_late(*args: Any) -> Any:
        opening.set()
        assert gate.wait(DEADLINE_S)
        return open_partition(*args)

    monkeypatch.setattr(node.store, "open_partition", opened_late)
    taking = asyncio.create_task(take(cluster, partition))
    assert await asyncio.to_thread(opening.wait, DEADLINE_S)
    taking.cancel()
    await asyncio.wait([taking], timeout=0.5)  # A cancel has to wait for the thread.
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with node.moves.lock:
        await asyncio.to_thread(
            node.catalog.close_partition, -1
        )  # What is being opened is, by then.
    assert partition not in node.catalog.shard("nam").journals
    assert ("nam", partition) not in node.store.journals()


async def test_move_partition_emptied_by_retention_keeps_its_sequence(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    cluster, sent = loaded
    partition, shard = partition_of(cluster), cluster[FROM].catalog.shard("nam")
    last = shard.own[partition].last_sequence
    shard.own[partition].seal()
    assert shard.drop(partition, last).until == last
    await take(cluster, partition)
    await tell_all(cluster)
    assert owners_of(cluster, partition) == [TO]
    assert (await cluster.ingest(sent[0], batch=0)).duplicate_rows == 200
    reached = (await cluster.ingest(make_observations(200, 2), batch=2)).reached
    assert reached[partition] == last + 1, "sequences go on"
    await cluster.restart(TO)
    journal = cluster[TO].catalog.shard("nam").own[partition]
    assert (journal.dropped, journal.last_sequence) == (last, last + 1)


async def test_hand_over_incomplete_copy_is_unavailable(
    loaded: tuple[Any, list[pa.Table]], make_observations: Callable[..., pa.Table]
) -> None:
    """The fence was gone for a while, and a commit came in between."""
    cluster, sent = loaded
    partition = partition_of(cluster)
    listing = await cluster[FROM].giving.fence(partition, to=TO)
    await cluster[FROM].giving.release(partition, to=TO)
    sent.append(make_observations(200, 2))
    await cluster.ingest(sent[-1], batch=2)
    asked = Handoff(Move(partition, listing.number, TO), listing.contents)
    with raises(Unavailable, expected="fence"):
        await cluster[FROM].giving.hand_over(asked)
    await cluster[FROM].giving.fence(partition, to=TO)
    with raises(Unavailable, expected="copy"):
        await cluster[FROM].giving.hand_over(asked)
    assert owners_of(cluster, partition) == [FROM]


async def test_move_partition_of_another_group_raises_input_error(
    loaded: tuple[Any, list[pa.Table]],
) -> None:
    cluster, _ = loaded
    partition = partition_of(cluster, "b")
    with raises(InputError, group="west"):
        await take(cluster, partition)


async def test_move_damaged_files_raise_corrupt_data(loaded: tuple[Any, list[pa.Table]]) -> None:
    cluster, _ = loaded
    partition = partition_of(cluster)
    place = cluster[FROM].store.partition_directory("nam", partition)
    (path,) = place.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="damaged before it was copied"):
        await take(cluster, partition)
    assert owners_of(cluster, partition) == [FROM]


@pytest.mark.parametrize(
    "victims",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("taker", "owner", "line")),
        "both",
    ],
)
async def test_move_cut_at_any_call_leaves_one_owner_and_resumes(
    loaded: tuple[Any, list[pa.Table]],
    make_observations: Callable[..., pa.Table],
    victims: str,
) -> None:
    """Each call is cut before and after its effect, and those who break off start again."""
    cluster, sent = loaded
    await cluster.reconfigure(migration=MigrationOptions(question_pause_s=0.0))
    partition, settled, number, batch = partition_of(cluster), 0, 0, 1
    reached = (await cluster.ask()).frontier[partition]
    to, other = TO, FROM
    while True:
        for is_late in (False, True):
            line = Line(cluster)
            line.cut_at = number, is_late
            with contextlib.suppress(GalileoError):
                await take(cluster, partition, line, to=to)
            if len(line.calls) <= number:
                assert settled > 0, "some hand-over was completed although its answer was lost"
                return
            for name in {"taker": [to], "owner": [other], "both": [to, other]}.get(victims, []):
                await cluster.restart(name)
            await cluster[other].giving.release(partition, to=to)  # as when its time is over
            assert len(owners_of(cluster, partition)) <= 1
            await tell_all(cluster)
            (owner,) = owners_of(cluster, partition)
            settled += owner == to
            batch += 1
            sent.append(make_observations(40, batch))
            now = await _sent(cluster, sent[-1], batch)
            assert now >= reached, "sequences never go back"
            reached = max(reached, now)
            await check_whole(cluster, sent)
            if owner == to:
                to, other = other, to
        number += 1


async def _sent(cluster: Any, table: pa.Table, batch: int) -> int:
    """Sends a batch until it is taken; the highest sequence that it reached."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionMoved):
                answer = await cluster.ingest(table, batch=batch)
                return int(max(answer.reached.values()))
            await asyncio.sleep(0.01)


class _LosesHandOvers(Line):
    """The line is cut with the answer to a hand-over."""

    async def hand_over(self, node: str, asked: Handoff) -> Move:
        self.cut_at = len(self.calls), True
        return await super().hand_over(node, asked)


async def test_move_of_a_removed_node_is_adopted_with_the_topology_without_it(
    loaded: tuple[Any, list[pa.Table]],
) -> None:
    """The receiver learns that the giver was removed before the answer that gave the partition."""
    cluster, _ = loaded
    cluster.topology = topology_changes.pin(cluster.topology)
    await cluster.reconfigure(migration=MigrationOptions(question_pause_s=0.0))
    register = TopologyRegister(TO, cluster[TO].live, store=cluster[TO].store, clock=SystemClock())
    register.adopt_moves = cluster[TO].moves.adopt
    for partition in sorted(cluster[FROM].partitions):
        with raises(Unavailable, node=FROM):
            await take(cluster, partition, _LosesHandOvers(cluster))
    assert not cluster[FROM].partitions
    lacking = placement.partitions_by_node(cluster[TO].topology)[FROM]
    assert lacking, "the answers to all hand-overs were lost"
    without = topology_changes.remove_node(cluster[FROM].topology, FROM)
    entry = Entry(8, ("b", TO), ("b", TO), without.to_json())
    await register.learn("b", STATE.encode(Ballot(8, entry)))
    assert lacking <= cluster[TO].partitions
    assert set(placement.partitions_by_node(cluster[TO].topology)) == {"b", TO}
