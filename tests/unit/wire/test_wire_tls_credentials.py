from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from expected_errors import raises
from proving import Certified, keys_in, token_file

from galileo.errors import ConfigError
from galileo.wire.channel import (
    LOOK_S,
    Channels,
    SharedChannels,
    open_blocking_channel,
    open_channel,
)
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles, server_credentials

CALL = "/test.Test/Who"
TOKEN = "glt_" + "x" * 43


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified.made(tmp_path_factory.mktemp("certified"))


@pytest.fixture
def node(certified: Certified) -> Path:
    return certified.of("node", "node")


async def who(request: bytes, context: Any) -> bytes:
    names = context.auth_context().get("x509_common_name", [b"no name"])
    token = dict(context.invocation_metadata()).get("authorization", "")
    return b" ".join([names[0], token.encode()])


@pytest.fixture
async def address(node: Path) -> AsyncIterator[str]:
    """Of a server that tells who asks it."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_registered_method_handlers("test.Test", handlers)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(keys_in(node)))
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def identity_at(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary(CALL)(b"", timeout=10)
    return answer


async def test_channel_mutual_tls_shows_both_certificates(
    address: str, certified: Certified
) -> None:
    keys = keys_in(certified.of("client", "ann"), token=TOKEN)
    async with open_channel(address, keys) as channel:
        assert await identity_at(channel) == b"ann Bearer " + TOKEN.encode()


async def test_channel_wrong_server_name_is_refused(address: str, certified: Certified) -> None:
    keys = keys_in(certified.of("client", "ann"))
    port = address.rpartition(":")[2]
    async with open_channel(f"localhost:{port}", keys) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="Hostname Verification"):
            await identity_at(channel)


async def test_channel_server_with_client_certificate_is_refused(
    certified: Certified, node: Path
) -> None:
    server = grpc.aio.server()
    posing = certified.of("client", "posing")
    server.add_registered_method_handlers(
        "test.Test", {"Who": grpc.unary_unary_rpc_method_handler(who)}
    )
    port = server.add_secure_port("127.0.0.1:0", server_credentials(keys_in(posing)))
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", keys_in(node)) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="certificate purpose"):
            await identity_at(channel)
    await server.stop(0)


async def test_server_expired_or_foreign_certificate_is_refused(
    address: str, certified: Certified, tmp_path: Path
) -> None:
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    over = certified.of("client", "over", valid_from=long_ago, days=1)
    foreign = Certified.made(tmp_path).of("client", "ann")
    for directory in (over, foreign):
        async with open_channel(address, keys_in(directory)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await identity_at(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_channels_renewed_files_are_used_unless_incomplete(
    address: str, certified: Certified, node: Path
) -> None:
    """With a new authority for all, which shows that the new files count, and the old do not."""
    client = certified.of("client", "ann")
    now = [0.0]
    channels = Channels(keys_in(client), monotonic=lambda: now[0])
    first = channels.get(address)
    assert await identity_at(first) == b"ann "
    good = (client / "key.pem").read_bytes()
    half = certified.of("client", "other") / "key.pem"
    half.replace(client / "key.pem")
    now[0] += 2 * LOOK_S
    assert channels.get(address) is first, "a key that does not fit its certificate"
    certified.of("client", "ann")
    assert (client / "key.pem").read_bytes() != good
    assert channels.get(address) is first, "it was looked just now"
    now[0] += 2 * LOOK_S
    second = channels.get(address)
    assert second is not first
    assert await identity_at(second) == b"ann "
    assert await identity_at(first) == b"ann ", "what runs over the old one goes on"
    await channels.close()


async def test_shared_channels_carry_the_token_over_renewed_files(
    address: str, certified: Certified
) -> None:
    client = certified.of("client", "ann")
    now = [0.0]
    channels = Channels(keys_in(client), monotonic=lambda: now[0])
    shared = SharedChannels(channels, TOKEN)
    first = shared.get(address)
    assert shared.get(address) is first
    assert await identity_at(first) == b"ann Bearer " + TOKEN.encode()
    for path in certified.of("client", "eve").iterdir():
        path.replace(client / path.name)
    now[0] += 2 * LOOK_S
    assert await identity_at(shared.get(address)) == b"eve Bearer " + TOKEN.encode()
    assert await identity_at(channels.get(address)) == b"eve "
    await channels.close()


async def test_channels_other_address_incomplete_files_uses_last_ones(
    address: str, certified: Certified
) -> None:
    client = certified.of("client", "ann")
    channels = Channels(keys_in(client))
    channels.get("127.0.0.1:1")
    (certified.of("client", "other") / "key.pem").replace(client / "key.pem")
    assert await identity_at(channels.get(address)) == b"ann "
    await channels.close()


async def test_blocking_channel_incomplete_files_uses_last_ones(
    address: str, certified: Certified
) -> None:
    client = certified.of("client", "bob")
    keys = keys_in(client)

    def asked() -> bytes:
        with open_blocking_channel(address, keys) as channel:
            answer: bytes = channel.unary_unary(CALL)(b"", timeout=60)
        return answer

    assert await asyncio.to_thread(asked) == b"bob "
    (certified.of("client", "other") / "key.pem").replace(client / "key.pem")
    assert await asyncio.to_thread(asked) == b"bob "
    (client / "certificate.pem").unlink()
    assert await asyncio.to_thread(asked) == b"bob "
    renewed = certified.of("client", "eve")
    for name in ("key.pem", "certificate.pem"):
        (renewed / name).replace(client / name)
    assert await asyncio.to_thread(asked) == b"eve ", "they fit each other again"


async def test_server_incomplete_files_uses_last_ones(
    address: str, certified: Certified, node: Path
) -> None:
    keys = keys_in(certified.of("client", "ann"))
    (certified.of("node", "other") / "key.pem").replace(node / "key.pem")
    async with open_channel(address, keys) as channel:
        assert await identity_at(channel) == b"ann "
    (node / "certificate.pem").unlink()
    async with open_channel(address, keys) as channel:
        assert await identity_at(channel) == b"ann "


def test_blocking_channel_sends_token(tmp_path: Path) -> None:
    def named(request: bytes, context: Any) -> bytes:
        return str(dict(context.invocation_metadata()).get("authorization")).encode()

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(named)
    server.add_registered_method_handlers("test.Test", {"Who": handler})
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    keys = TlsFiles(token_file=str(token_file(tmp_path / "token", f"{TOKEN}\n")))
    with open_blocking_channel(address, keys) as channel:
        assert channel.unary_unary(CALL)(b"", timeout=10) == f"Bearer {TOKEN}".encode()
    server.stop(0)


@pytest.mark.parametrize("open_one", [open_channel, open_blocking_channel])
async def test_open_channel_token_without_tls_raises(open_one: Callable[..., Any]) -> None:
    with raises(ConfigError, remedy="insecure", expected="tls", address="10.0.0.1:7701") as caught:
        open_one("10.0.0.1:7701", TlsFiles(token=TOKEN))
    assert TOKEN not in str(caught.value)
    closing = open_one("10.0.0.1:7701", TlsFiles(token=TOKEN, insecure=True)).close()
    if closing is not None:
        await closing


def test_tls_files_repr_hides_token() -> None:
    assert TOKEN not in repr(TlsFiles(token=TOKEN))


@pytest.mark.parametrize("wrong", ["", "two words", "x" * 513, "\x00", "\u00e9"])
def test_tls_files_invalid_token_file_raises(tmp_path: Path, wrong: str) -> None:
    path = token_file(tmp_path / "token", wrong)
    with raises(ConfigError, expected="token", key="token_file") as caught:
        TlsFiles(token_file=str(path)).read_token()
    assert not wrong.strip() or wrong not in str(caught.value)


def test_tls_files_check_invalid_file_raises_with_key(certified: Certified) -> None:
    directory = certified.of("node", "node")
    good = keys_in(directory)
    good.check()
    NO_TLS_FILES.check()
    with raises(ConfigError, expected="all_files", key="tls.key"):
        TlsFiles(certificate=good.certificate).check()
    with raises(ConfigError, expected="readable_file", key="tls.key"):
        TlsFiles(good.certificate, str(directory / "away"), good.authority).check()
    with raises(ConfigError, expected="pem", key="tls.authority"):
        TlsFiles(good.certificate, good.key, good.key).check()
    with raises(ConfigError, expected="pem", key="tls.certificate"):
        TlsFiles(good.authority, good.key, good.authority).check()
    Path(good.key).chmod(0o640)
    with raises(ConfigError, expected="private_file", key="tls.key"):
        good.check()
