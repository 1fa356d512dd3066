"""Every method for every caller, with and without certificates, asked of whole nodes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from every_method import LETTERS, PATHS, TABLE, outcome, short
from proving import Certified, Tokens, auth_section, keys_in, tls_section

from galileo.clock import SystemClock
from galileo.config import from_dict
from galileo.rpc.access import Role
from galileo.server.node_process import NodeProcess
from galileo.wire.channel import open_channel
from galileo.wire.tls_credentials import TlsFiles

DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
NOT_SERVED = {m for m in PATHS if "Evaluator/" in m or not TABLE.get(short(m))}
"""By nodes: evaluators', and a method of gRPC's own."""
HEALTH = "/grpc.health.v1.Health/Check"
UNKNOWN = {"none": "", "unknown": "glt_of-no-principal", "expired": "late"}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified.made(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    made = Tokens.of_all_roles(tmp_path_factory.mktemp("tokens") / "principals.toml")
    made.add("late", *Role, expires_at=round(time.time()) - 1)
    return made


@asynccontextmanager
async def node(directory: Path, sections: dict[str, Any]) -> AsyncIterator[str]:
    """A node as it is served, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {"groups": [{"name": "g", "nodes": [{"name": "n", "address": address}]}]}
    own = {"name": "n", "directory": str(directory)}
    more = {"samplers": {"uploads": "sandboxed"}, **sections}
    config = from_dict({"node": own, "cluster": cluster, **more})
    stop = asyncio.Event()
    serving = asyncio.create_task(NodeProcess(config, clock=SystemClock()).run(stop))
    try:
        yield address
    finally:
        stop.set()
        await serving


async def denied(address: str, keys: TlsFiles) -> dict[str, bool]:
    """The served methods that a caller may not call."""
    async with open_channel(address, keys) as channel:
        while await outcome(channel, HEALTH) is not grpc.StatusCode.OK:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        found = {method: await outcome(channel, method) for method in PATHS}
    assert {m for m, code in found.items() if code is grpc.StatusCode.UNIMPLEMENTED} <= NOT_SERVED
    assert grpc.StatusCode.DEADLINE_EXCEEDED not in found.values()
    return {m: code in DENIED for m, code in found.items() if m not in NOT_SERVED}


def wanted(*letters: str) -> dict[str, bool]:
    return {m: not TABLE[short(m)] & {*letters} for m in PATHS if m not in NOT_SERVED}


Proves = Callable[[str], TlsFiles]


async def check_all(address: str, tokens: Tokens, *, keys: Proves, is_node: TlsFiles) -> None:
    for role, letter in LETTERS.items():
        if role is not Role.NODE:
            assert await denied(address, keys(tokens.tokens[role])) == wanted(letter), role
    assert await denied(address, is_node) == wanted("n")
    for name, token in UNKNOWN.items():
        assert await denied(address, keys(tokens.tokens.get(token, token))) == wanted("-"), name


@pytest.mark.slow
async def test_permissions_with_tokens_without_tls(tokens: Tokens, tmp_path: Path) -> None:
    auth = auth_section(tokens, tokens.tokens[Role.NODE])
    async with node(tmp_path / "data", {"auth": auth}) as address:
        is_node = TlsFiles(token=tokens.tokens[Role.NODE])
        await check_all(address, tokens, keys=lambda token: TlsFiles(token=token), is_node=is_node)


async def test_permissions_with_tokens_and_tls(
    tokens: Tokens, certified: Certified, tmp_path: Path
) -> None:
    own, client = certified.of("node", "n"), certified.of("client", "ann")
    sections = {"tls": tls_section(own), "auth": {"token_file": str(tokens.path)}}
    async with node(tmp_path / "data", sections) as address:

        def keys(token: str) -> TlsFiles:
            return keys_in(client, token=token)

        await check_all(address, tokens, keys=keys, is_node=keys_in(own))
        # A node's token makes none where certificates do, nor does a node need one.
        assert await denied(address, keys(tokens.tokens[Role.NODE])) == wanted("-")
        assert await denied(address, keys_in(own, token="glt_of-no-principal")) == wanted("n")


async def test_permissions_with_tls_without_tokens(certified: Certified, tmp_path: Path) -> None:
    own, client = certified.of("node", "m"), certified.of("client", "bob")
    async with node(tmp_path / "data", {"tls": tls_section(own)}) as address:
        assert await denied(address, keys_in(client)) == wanted("r", "w", "s", "a", "-")
        assert await denied(address, keys_in(own)) == wanted("n")


async def test_permissions_without_authentication_deny_nothing(tmp_path: Path) -> None:
    async with node(tmp_path / "data", {}) as address:
        assert not any((await denied(address, TlsFiles())).values())
