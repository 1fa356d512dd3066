"""To whom a client is connected, and when it no longer is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from proving import Certified

import galileo
from galileo.errors import ConfigError, InputError
from galileo.wire.tls_probe import speaks_tls


async def test_a_client_shows_its_addresses_and_no_secret() -> None:
    proof = galileo.client.Credentials(token="gal_secret", insecure=True)
    with galileo.Client("127.0.0.1:1", "127.0.0.1:2", proof=proof) as client:
        assert repr(client) == "<Client of 127.0.0.1:1, 127.0.0.1:2>"
    async with galileo.AsyncClient("127.0.0.1:1", proof=proof) as awaited:
        assert repr(awaited) == "<AsyncClient of 127.0.0.1:1>"


def test_every_node_gives_the_same_topology(cluster: galileo.LocalCluster) -> None:
    texts = set()
    for address in cluster.addresses:
        with galileo.connect(address) as one:
            texts.add(one.topology_json())
    assert len(texts) == 1


def test_a_client_that_knows_one_node_learns_the_others(cluster: galileo.LocalCluster) -> None:
    with galileo.connect(cluster.addresses[1]) as one:
        one.datasets()
        assert sorted(one._client._caller.addresses) == sorted(cluster.addresses)


def test_a_client_learns_addresses_anew_after_one_did_not_answer(
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


@pytest.mark.parametrize("call", ["fetch_many", "submit_many"])
def test_calls_about_many_queries_learn_the_others_too(
    cluster: galileo.LocalCluster, call: str
) -> None:
    """Else the reader of many is lost with the one node that it was given."""
    asked = galileo.Submission("no-such-dataset", "x > 1")
    with galileo.connect(cluster.addresses[1]) as one:
        if call == "submit_many":
            assert one.submit_many([asked])[0].error is not None
        else:
            assert asked.id in one.fetch_many({asked.id: ""}).errors
        assert sorted(one._client._caller.addresses) == sorted(cluster.addresses)


async def test_who_is_cancelled_while_it_learns_the_others_learns_them_later(
    cluster: galileo.LocalCluster,
) -> None:
    async with galileo.AsyncClient(cluster.addresses[0]) as one:
        caller = one._caller
        learning = asyncio.create_task(caller._learn_addresses(cluster.addresses[0]))
        await asyncio.sleep(0)
        assert learning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await learning
        await one.datasets()
        assert sorted(caller.addresses) == sorted(cluster.addresses)


def test_a_closed_client_says_so(cluster: galileo.LocalCluster) -> None:
    with galileo.connect(*cluster.addresses) as one:
        one.datasets()
    with pytest.raises(InputError, match="this client is closed; connect again"):
        one.datasets()
    one.close()


@pytest.mark.parametrize("address", ["", ":7701", "host:port", "host:99999", "a b"])
def test_an_address_is_host_and_port(address: str) -> None:
    wanted = f"expected an address as 'host:port' or 'host', got '{address}'"
    with pytest.raises(InputError, match=wanted):
        galileo.connect(address)


def test_a_client_with_tls_hears_at_once_that_a_node_has_none(
    cluster: galileo.LocalCluster, tmp_path: Path
) -> None:
    certificates = Certified.made(tmp_path).of("client", "client")
    with (
        galileo.connect(cluster.addresses[0], tls=certificates, timeout="1h") as one,
        pytest.raises(
            ConfigError, match=f"{cluster.addresses[0]} does not speak TLS.*without tls="
        ),
    ):
        one.datasets()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request", b"\x16\x03"])
async def test_what_answers_otherwise_may_speak_anything(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await speaks_tls(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") is None
    assert await speaks_tls("127.0.0.1:1") is None
