"""To whom a client is connected, and when it no longer is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from proving import Certified

import galileo
from galileo.dht.topology import Topology
from galileo.errors import ConfigError, InputError
from galileo.wire.tls_probe import speaks_tls


async def test_client_repr_shows_addresses_and_no_secret() -> None:
    proof = galileo.client.Credentials(token="gal_secret", insecure=True)
    with galileo.Client("127.0.0.1:1", "127.0.0.1:2", proof=proof) as client:
        assert repr(client) == "<Client of 127.0.0.1:1, 127.0.0.1:2>"
    async with galileo.AsyncClient("127.0.0.1:1", proof=proof) as awaited:
        assert repr(awaited) == "<AsyncClient of 127.0.0.1:1>"


def test_topology_json_has_the_same_placement_at_every_node(cluster: galileo.LocalCluster) -> None:
    """Nodes learn of new leaders one after the other."""
    placements = set()
    for address in cluster.addresses:
        with galileo.connect(address) as one:
            placements.add(Topology.from_json(one.topology_json()).placement_json)
    assert len(placements) == 1


def test_client_with_one_address_learns_the_others(cluster: galileo.LocalCluster) -> None:
    with galileo.connect(cluster.addresses[1]) as one:
        one.datasets()
        assert sorted(one._client._caller.addresses) == sorted(cluster.addresses)


def test_client_after_a_failure_learns_addresses_again(
    cluster: galileo.LocalCluster,
) -> None:
    """It keeps the configured addresses, and drops others that no topology names any more."""
    gone = "127.0.0.1:1"
    with galileo.connect(gone, cluster.addresses[0]) as one:
        one.datasets()
        caller = one._client._caller
        assert sorted(caller.addresses) == sorted([gone, *cluster.addresses])
        caller.addresses = ["127.0.0.1:2", cluster.addresses[0], gone]
        one.datasets()
        assert sorted(caller.addresses) == sorted([gone, *cluster.addresses])


async def test_client_cancelled_while_learning_learns_later(
    cluster: galileo.LocalCluster,
) -> None:
    async with galileo.AsyncClient(cluster.addresses[0]) as one:
        caller = one._caller
        learning = asyncio.create_task(caller.learn_addresses(cluster.addresses[0]))
        await asyncio.sleep(0)
        assert learning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await learning
        await one.datasets()
        assert sorted(caller.addresses) == sorted(cluster.addresses)


def test_client_closed_refuses_calls(cluster: galileo.LocalCluster) -> None:
    with galileo.connect(*cluster.addresses) as one:
        one.datasets()
    with raises(InputError):
        one.datasets()
    one.close()


@pytest.mark.parametrize(
    "address",
    ["", ":7701", "host:port", "host:99999", "a b", "h:1,h:2", "http://h:1", 7701, ["h:1"]],
)
def test_connect_with_an_invalid_address_is_refused(address: Any) -> None:
    with raises(InputError, parameter="address"):
        galileo.connect(address)


def test_connect_with_tls_to_a_node_without_names_the_remedy(
    cluster: galileo.LocalCluster, tmp_path: Path
) -> None:
    certificates = Certified.made(tmp_path).of("client", "client")
    with (
        galileo.connect(cluster.addresses[0], tls=certificates, timeout="1h") as one,
        raises(ConfigError, address=cluster.addresses[0], remedy="no_tls"),
    ):
        one.datasets()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request", b"\x16\x03"])
async def test_speaks_tls_of_another_answer_is_unknown(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await speaks_tls(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") is None
    assert await speaks_tls("127.0.0.1:1") is None
