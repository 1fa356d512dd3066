"""Calls that send no request, beside a writer, at a whole node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from gateway_serving import node
from proving import Tokens, auth_section

import galileo
from galileo.rpc.access import Role
from galileo.wire.channel import open_channel
from galileo.wire.tls_credentials import TlsFiles

INGEST = "/galileo.v1.Storage/Ingest"
IDLE = 128
WITHIN_S = 15.0
"""A call that finds no room waits for longer."""


async def under_way(client: galileo.AsyncClient) -> int:
    """How many calls of Ingest the node serves."""
    [served] = (await client.status()).nodes
    return served.calls.get("Storage/Ingest", 0)


@pytest.mark.parametrize("caller", ["stranger", "reader", "rival"])
async def test_ingest_goes_on_beside_calls_that_send_nothing(tmp_path: Path, caller: str) -> None:
    """Of a stranger, of a reader, and of another writer, who may store but has only its share."""
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("rival", Role.WRITER)
    tokens.tokens["stranger"] = ""
    auth = auth_section(tokens, tokens.tokens["node"])
    batch = {"latitude": [50.0], "longitude": [8.0], "time": ["2024-01-01T00:00Z"], "depth": [1.0]}
    async with (
        node(tmp_path / "node", {"auth": auth}) as at,
        galileo.AsyncClient(at, proof=tokens.proof("admin")) as admin,
        galileo.AsyncClient(at, proof=tokens.proof("writer")) as writer,
        open_channel(at, TlsFiles(token=tokens.tokens[caller])) as channel,
    ):
        await admin.create_dataset(galileo.Schema("sea", [galileo.Feature("depth")]))
        idle = [channel.stream_unary(INGEST)(timeout=120) for _ in range(IDLE)]
        if caller == "rival":
            while await under_way(admin) < IDLE:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        else:
            refused = await asyncio.gather(*idle, return_exceptions=True)
            codes = {error.code() for error in refused if isinstance(error, grpc.RpcError)}
            reader, stranger = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
            assert codes == {reader if caller == "reader" else stranger}
        async with asyncio.timeout(WITHIN_S):
            for _ in range(3):
                await writer.ingest("sea", batch)
        for call in idle:
            call.cancel()
