"""The calls of `AsyncClient` about the cluster: nodes, copies, ranges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from galileo.client import decode, node_removal, range_changes, scrubs
from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.node_removal import RemovalProgress
from galileo.client.range_changes import RangesProgress
from galileo.client.results import ClusterStatus, MoveProgress
from galileo.client.scrubs import ScrubProgress
from galileo.errors import Unavailable
from galileo.wire.caller import Stream
from galileo.wire.services import CLUSTER, PARTITIONS
from galileo.wire.v1 import cluster_pb2, partitions_pb2


class AsyncCluster(Calls):
    """Shows the nodes, and changes which there are and what they store."""

    async def status(self) -> ClusterStatus:
        """Every node's state, also of those that do not answer.

        Example:
            >>> status = await client.status()
            >>> [node.state for node in status.nodes]
            ['up', 'up', 'up']
        """
        reply = await self._caller.unary(CLUSTER, "Status", cluster_pb2.StatusRequest())
        return ClusterStatus(tuple(decode.node_status(node) for node in reply.nodes))

    async def drain(self, node: str, *, undo: bool = False) -> None:
        """Has a node hand its continuous queries to other nodes, and accept no new ones.

        Returns at once; `status` shows the node as "draining" and how many it still coordinates.
        Its data stays on its disk. A restart of the node ends the draining.

        Args:
            node: its name in the topology.
            undo: accept queries again.

        Raises:
            InputError: the node does not exist.
            Unavailable: the node cannot be reached; there is no retry.

        Example:
            >>> await client.drain("node-3")
            >>> await client.drain("node-3", undo=True)
        """
        instance_of(str, node, "the name of a node")
        states = {status.name: status.state for status in (await self.status()).nodes}
        if states.get(node) == "unreachable":
            raise Unavailable(
                f"node {node!r} is unreachable, so it cannot be drained; start it, or check its "
                "log and the network, and drain it then. If it stays down, other nodes take over "
                "its continuous queries without it",
                node=node,
            )
        request = cluster_pb2.DrainRequest(node=node, undo=undo)
        await self._caller.unary(CLUSTER, "Drain", request)

    def move(self, partition: int, *, to: str) -> AsyncIterator[MoveProgress]:
        """Moves a partition to another node of its group, without downtime.

        The node becomes a member of the partition's replica set, gets all that it lacks, and leads
        then, whatever its share of partitions. Closing the iterator does not end the move.

        Args:
            partition: its number.
            to: the node that receives it.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such node or partition, the node is of another group, or it is
                being removed.
            Unavailable: the node does not answer, or too few nodes do.

        Example:
            >>> async for progress in client.move(3, to="node-3"):  # doctest: +SKIP
            ...     print(progress.stage)
        """
        instance_of(int, partition, "the number of a partition")
        instance_of(str, to, "the name of a node")
        request = partitions_pb2.MoveRequest(partition=partition, to=to)
        is_begun = False

        def is_progress(progress: MoveProgress) -> bool:
            nonlocal is_begun
            before, is_begun = is_begun, True
            return not before

        async def rest() -> AsyncGenerator[MoveProgress, None]:
            """The progress of the move; a repeated request continues it."""
            stream, part = await self._caller.open(
                lambda node: node.stream(PARTITIONS, "Move", request),
                Stream.read,
            )
            with stream:
                while part is not None:
                    yield MoveProgress(partition, part.stage)
                    if part.stage == "done":
                        return
                    part = await stream.read()
            raise Unavailable("the node closed the stream before the partition had moved")

        return self._caller.resume(rest, is_progress=is_progress)

    async def add_node(
        self,
        name: str,
        address: str,
        *,
        group: str = "",
        weight: float = 1.0,
        rack: str = "",
        new_group: bool = False,
    ) -> None:
        """Announces a node that will join; `galileo serve --join` joins without this call.

        The node has no partitions; it gets its share once it runs.

        Args:
            name: of the node, which no other node has.
            address: "host:port" at which nodes and clients reach it.
            group: that it belongs to; the one with the fewest nodes when empty.
            weight: its share of the partitions, relative to that of other nodes of the group.
            rack: its rack; nodes of one rack can fail together. A rack of its own when empty.
            new_group: whether `group` is made with this node, which gets its partitions. The group
                stores nothing before `set_ranges`.

        Raises:
            InputError: the name or the address is taken, or the group does not exist, or exists
                although it is to be made.
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> await client.add_node("node-9", "10.0.0.19:7701")  # doctest: +SKIP
        """
        instance_of(str, name, "the name of a node")
        instance_of(str, address, "the address of a node")
        instance_of(str, group, "the name of a group")
        instance_of(str, rack, "the name of a rack")
        request = cluster_pb2.AddNodeRequest(
            name=name, address=address, group=group, weight=weight, rack=rack, new_group=new_group
        )
        await self._caller.unary(CLUSTER, "AddNode", request)

    def remove_node(
        self, node: str, *, to: str = "", lost: bool = False
    ) -> AsyncIterator[RemovalProgress]:
        """Removes a node: its partitions and continuous queries move to others, then it stops.

        The node carries the removal out by itself; closing the iterator does not end it, and
        neither does a restart of the node. `keep_node` ends it.

        Args:
            node: its name in the topology.
            to: the node of the same group that takes all its partitions; those of the group, by
                their shares, when empty.
            lost: whether the node is gone for good. It is removed at once, if others have
                copies of its partitions, which make new ones then.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such node, it is the last of its group, or it is `lost` and
                alive, or has the only copy of its partitions.
            Unavailable: a node cannot be reached.

        Example:
            >>> async for progress in client.remove_node("node-3"):  # doctest: +SKIP
            ...     print(progress.stage, progress.left)
        """
        instance_of(str, node, "the name of a node")
        instance_of(str, to, "the name of a node")
        return node_removal.remove_node(self._caller, node, to=to, lost=lost)

    def scrub(self, *nodes: str) -> AsyncIterator[ScrubProgress]:
        """Has nodes read all that they store again, past the page cache, and find damaged files.

        They do so by themselves within `storage.scrub_days`; this begins at once, and reads as fast
        as it can up to 256 MiB/s. Closing the iterator does not end it; calling again shows the
        progress of the same round. A node that restarts goes on at its own rate.

        Args:
            nodes: their names; all nodes by default.

        Returns:
            The progress of each node whenever it changes; at last with `is_over`, or with a
            `failure` if the node did not answer.

        Raises:
            InputError: there is no such node.
            NotPermitted: the caller is no administrator.
            Unavailable: no node answered.

        Example:
            >>> [last.damages async for last in client.scrub("node-1") if last.is_over]
            [()]
        """
        for node in nodes:
            instance_of(str, node, "the name of a node")
        return scrubs.scrub(self._caller, nodes)

    async def set_replicas(self, replicas: int) -> None:
        """Changes the number of copies of each partition; nodes make or delete copies at once.

        Args:
            replicas: from 1 to 5.

        Raises:
            InputError: there cannot be so many.
            Unavailable: too few nodes can be reached.

        Example:
            >>> await client.set_replicas(3)  # doctest: +SKIP
        """
        instance_of(int, replicas, "a number of copies")
        request = cluster_pb2.SetReplicasRequest(replicas=max(replicas, 0))
        await self._caller.unary(CLUSTER, "SetReplicas", request)

    async def forget_node(self, node: str) -> tuple[int, ...]:
        """Accepts the loss of a node's directory; the node then serves its partitions, empty.

        Use it where no node has a copy of a partition. A node that starts with an empty directory
        does not serve such partitions of its lost one, until this call says that they are lost.

        Returns:
            The partitions.

        Raises:
            InputError: there is no such node, it has its directory, or other nodes have copies.
            Unavailable: the node does not answer, or too few nodes do.

        Example:
            >>> await client.forget_node("node-3")  # doctest: +SKIP
        """
        instance_of(str, node, "the name of a node")
        request = cluster_pb2.ForgetNodeRequest(node=node)
        reply = await self._caller.unary(CLUSTER, "ForgetNode", request)
        return tuple(reply.partitions)

    def set_ranges(self, ranges: Sequence[tuple[str, str]]) -> AsyncIterator[RangesProgress]:
        """Changes the geohash ranges of the groups; stored rows stay where they are.

        Every node learns of the ranges first. While one is down, they do not come into force;
        closing the iterator leaves them announced, which changes no answer. The same call goes on,
        and `keep_ranges` takes them back.

        Args:
            ranges: the geohash at which each range begins, ascending from "", and the group that
                stores its rows.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such group, or other ranges are announced.
            ConfigError: they are no ranges.
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> async for progress in client.set_ranges([("", "group-1")]):
            ...     stage = progress.stage
            >>> stage
            'done'
        """
        return range_changes.set_ranges(self._caller, ranges)

    async def keep_ranges(self) -> None:
        """Takes announced ranges back that are not in force yet.

        Raises:
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> await client.keep_ranges()
        """
        await range_changes.keep_ranges(self._caller)

    async def keep_node(self, node: str) -> None:
        """Ends the removal of a node, which gets its share of the partitions again.

        Raises:
            InputError: there is no such node.
            Unavailable: the node cannot be reached, or too few nodes answered.

        Example:
            >>> await client.keep_node("node-3")
        """
        instance_of(str, node, "the name of a node")
        await node_removal.keep_node(self._caller, node)

    async def topology_json(self) -> str:
        """Groups, nodes, ranges and partitions, as JSON.

        Example:
            >>> import json
            >>> len(json.loads(await client.topology_json())["groups"])
            2
        """
        reply = await self._caller.unary(CLUSTER, "Topology", cluster_pb2.TopologyRequest())
        return str(reply.topology_json)
