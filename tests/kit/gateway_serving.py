"""A node and a gateway that serve within this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from galileo.client.async_client import AsyncClient
from galileo.clock import SystemClock
from galileo.config import from_dict
from galileo.gateway.options import GatewayOptions
from galileo.gateway.serving import GatewayServer
from galileo.model.schema import Schema
from galileo.server.joining import resolve_topology
from galileo.server.node_options import open_store
from galileo.server.node_process import NodeProcess


@contextlib.asynccontextmanager
async def node(directory: Path, sections: dict[str, Any]) -> AsyncIterator[str]:
    """A node as it is served, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {"groups": [{"name": "g", "nodes": [{"name": "n", "address": address}]}]}
    config = from_dict(
        {"node": {"name": "n", "directory": str(directory)}, "cluster": cluster, **sections}
    )
    stop, clock = asyncio.Event(), SystemClock()
    store = open_store(config, clock)
    config = await resolve_topology(config, store)
    serving = asyncio.create_task(NodeProcess(config, store=store, clock=clock).run(stop))
    try:
        yield address
    finally:
        stop.set()
        await serving


@contextlib.asynccontextmanager
async def gateway(options: GatewayOptions) -> AsyncIterator[str]:
    server = GatewayServer(options)
    serving = asyncio.create_task(server.serve())
    try:
        yield server.url
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@contextlib.asynccontextmanager
async def site(
    directory: Path, sections: dict[str, Any], schema: Schema
) -> AsyncIterator[tuple[str, AsyncClient]]:
    """The URL of a gateway, and a client of its node, which has an empty dataset."""
    async with node(directory, sections) as address, AsyncClient(address, timeout="60s") as client:
        await client.create_dataset(schema)
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        async with gateway(options) as url:
            yield url, client
